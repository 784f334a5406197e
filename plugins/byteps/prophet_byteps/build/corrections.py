"""Edits that mend faults in BytePS and its ps-lite which made jobs hang, crash or crawl.

They are in the CPU build, so every contender on BytePS runs on the same mended base and comparisons stay fair.
`CORRECTIONS` has them by fault; docs/corrections.md tells each one's story, under its name. Where a release is not the
one that they were written for, `releases.py` says what differs.
"""

from __future__ import annotations

from .rules import Correction, Rule

_ZMQ_VAN = "3rdparty/ps-lite/src/zmq_van.h"

RECEIVE_RULES = (
    Rule(
        _ZMQ_VAN,
        "#include <zmq.h>\n",
        "#include <poll.h>\n#include <sys/eventfd.h>\n#include <unistd.h>\n#include <zmq.h>\n",
        "needed by the edits below",
    ),
    Rule(
        _ZMQ_VAN,
        "  std::mutex mu_;\n  void* receiver_ = nullptr;",
        """\
  std::mutex mu_;

  // Starts the receive thread of a socket on which no other thread works yet. Needs mu_.
  void StartReceiving(void* socket) {
    int wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    CHECK_GE(wake, 0) << strerror(errno);
    wake_fds_[socket] = wake;
    thread_list_.push_back(new std::thread(&ZMQVan::CallZmqRecvThread, this, socket));
  }

  void Wake(int fd) {
    uint64_t one = 1;
    while (write(fd, &one, sizeof(one)) < 0 && errno == EINTR) {}
  }

  // A send may take notice of an arrival that the receive thread then never hears of: tell it. Needs mu_.
  void WakeReceiver(void* socket) {
    auto wake = wake_fds_.find(socket);
    if (wake == wake_fds_.end()) return;
    int events = 0;
    size_t size = sizeof(events);
    CHECK_EQ(zmq_getsockopt(socket, ZMQ_EVENTS, &events, &size), 0) << zmq_strerror(errno);
    if (events & ZMQ_POLLIN) Wake(wake->second);
  }

  // Waits until a receive on the socket may succeed. Must follow, under the same hold of mu_, a receive that found
  // nothing; mu_ is free while it waits.
  void WaitForArrival(void* socket, std::unique_lock<std::mutex>& lk) {
    int arrivals = -1;
    size_t size = sizeof(arrivals);
    CHECK_EQ(zmq_getsockopt(socket, ZMQ_FD, &arrivals, &size), 0) << zmq_strerror(errno);
    int wake = wake_fds_.at(socket);
    lk.unlock();
    struct pollfd fds[2] = {{arrivals, POLLIN, 0}, {wake, POLLIN, 0}};
    // The time limit is a belt beside braces: no arrival depends on it.
    poll(fds, 2, 100);
    uint64_t drained;
    if (fds[1].revents && read(wake, &drained, sizeof(drained)) < 0) CHECK_EQ(errno, EAGAIN);
  }

  std::unordered_map<void*, int> wake_fds_;
  void* receiver_ = nullptr;""",
        "see docs/corrections.md: receive threads wait for arrivals instead of spinning",
    ),
    Rule(
        _ZMQ_VAN,
        "std::lock_guard<std::mutex> lk(mu_);\n          // the zmq_msg_recv",
        "std::unique_lock<std::mutex> lk(mu_);\n          // the zmq_msg_recv",
        "the wait below gives the lock back",
    ),
    Rule(
        _ZMQ_VAN,
        "} else if (errno == EAGAIN) { // ZMQ_DONTWAIT\n",
        "} else if (errno == EAGAIN) { // ZMQ_DONTWAIT\n            WaitForArrival(socket, lk);\n",
        "wait for arrivals instead of spinning",
    ),
    Rule(
        _ZMQ_VAN,
        "      send_bytes += data_size;\n    }\n    return send_bytes;",
        "      send_bytes += data_size;\n    }\n    WakeReceiver(socket);\n    return send_bytes;",
        "a send can consume the edge on which a receive thread waits",
    ),
    Rule(
        _ZMQ_VAN,
        "    for (auto t : thread_list_) t->join();\n",
        """\
    {
      std::lock_guard<std::mutex> lk(mu_);
      for (auto& it : wake_fds_) Wake(it.second);
    }
    for (auto t : thread_list_) t->join();
    for (auto& it : wake_fds_) close(it.second);
    wake_fds_.clear();
""",
        "waiting threads must hear that the end has come",
    ),
)

START_RULES = (
    Rule(
        _ZMQ_VAN,
        "    auto t = new std::thread(&ZMQVan::CallZmqRecvThread, this, (void*) receiver_);\n"
        "    thread_list_.push_back(t);\n",
        "    StartReceiving(receiver_);\n",
        "one place starts receive threads",
    ),
    Rule(
        _ZMQ_VAN,
        "      std::lock_guard<std::mutex> lk(mu_);\n"
        "      if (is_worker_ && (senders_.find(id)==senders_.end())) {\n"
        "        auto t = new std::thread(&ZMQVan::CallZmqRecvThread, this, (void*) sender);\n"
        "        thread_list_.push_back(t);\n"
        "      }\n",
        "",
        "it let a receive thread loose on a socket that this thread was about to connect; see docs/corrections.md",
    ),
    Rule(
        _ZMQ_VAN,
        "    senders_[id] = sender;\n",
        "    bool is_new = senders_.find(id) == senders_.end();\n"
        "    senders_[id] = sender;\n"
        "    if (is_worker_ && is_new && my_node_.id != Node::kEmpty) StartReceiving(sender);\n",
        "the receive thread starts once the socket is connected",
    ),
)

QUEUE_RULES = (
    Rule(
        _ZMQ_VAN,
        "  void Wake(int fd) {",
        """\
  // Lets any number of messages wait in a socket. To be called before the socket is bound or connected.
  static void LiftMessageLimits(void* socket) {
    int none = 0;
    CHECK_EQ(zmq_setsockopt(socket, ZMQ_SNDHWM, &none, sizeof(none)), 0) << zmq_strerror(errno);
    CHECK_EQ(zmq_setsockopt(socket, ZMQ_RCVHWM, &none, sizeof(none)), 0) << zmq_strerror(errno);
  }

  void Wake(int fd) {""",
        "see docs/corrections.md: no send may block while it holds mu_",
    ),
    Rule(
        _ZMQ_VAN,
        '    int local = GetEnv("DMLC_LOCAL", 0);\n',
        '    LiftMessageLimits(receiver_);\n    int local = GetEnv("DMLC_LOCAL", 0);\n',
        "no send may block while it holds mu_",
    ),
    Rule(
        _ZMQ_VAN,
        "    if (my_node_.id != Node::kEmpty) {\n",
        "    LiftMessageLimits(sender);\n    if (my_node_.id != Node::kEmpty) {\n",
        "no send may block while it holds mu_",
    ),
)

STOP_RULES = (
    Rule(
        _ZMQ_VAN,
        "int linger = 0;",
        "int linger = 5000;",
        "a node that ended at once dropped what it had yet to send: the scheduler, the answers to the last barrier",
    ),
)

_LEAK_REASON = "see docs/corrections.md: each message that arrived left memory behind"

FREE_RULES = (
    Rule(
        _ZMQ_VAN,
        "    UnpackMeta(meta_buf, meta_len, &(msg->meta));\n    recv_bytes += meta_len;\n",
        "    UnpackMeta(meta_buf, meta_len, &(msg->meta));\n    recv_bytes += meta_len;\n"
        "    zmq_msg_close(notification.meta_zmsg);\n    delete notification.meta_zmsg;\n",
        _LEAK_REASON,
    ),
    Rule(
        _ZMQ_VAN,
        "      recv_buffers_.Push(*buf_ctx);\n",
        "      recv_buffers_.Push(*buf_ctx);\n      delete buf_ctx;\n",
        _LEAK_REASON,
    ),
)

_SPARE_REASON = "see docs/corrections.md: a fast worker's next push overwrote sums a slower worker had yet to receive"
_WHOLE_REASON = "see docs/corrections.md: workers pulled weights that had half of another worker's update"
_ANSWER_REASON = (
    "see docs/corrections.md: the compressor's one buffer was overwritten while an answer was still on its way"
)

SERVER_RULES = (
    Rule(
        "byteps/server/server.h",
        "std::unordered_map<uint64_t, UpdateBuf> update_buf_;\n",
        """\
std::mutex update_buf_mu_;
std::unordered_map<uint64_t, UpdateBuf> update_buf_;

// The entry of a key; it stays where it is when other keys are added.
UpdateBuf& GetUpdateBuf(uint64_t key) {
  std::lock_guard<std::mutex> lock(update_buf_mu_);
  return update_buf_[key];
}
""",
        "engine threads looked keys up in a hash table while the message thread added others to it",
    ),
    Rule(
        "byteps/server/server.h",
        "struct BytePSArray {\n  char* tensor;\n",
        "struct BytePSArray {\n  char* tensor;\n  char* spare;\n",
        _SPARE_REASON,
    ),
    Rule(
        "byteps/server/server.cc",
        "          engine_queues_[tid]->ClearCounter(key);\n",
        """\
          engine_queues_[tid]->ClearCounter(key);
          if (!stored->spare) PageAlignedMalloc((void**)&stored->spare, common::Align(stored->len, stored->dtype));
          std::swap(stored->tensor, stored->spare);
""",
        _SPARE_REASON,
    ),
    Rule(
        "byteps/server/server.h",
        "  BytePSArray merged;\n};\n",
        "  BytePSArray merged;\n  std::vector<char> answers[2];  // compressed sums, in turn\n  int turn = 0;\n};\n",
        _ANSWER_REASON,
    ),
    Rule(
        "byteps/server/server.cc",
        "        updates.merged.tensor = compressed.data;\n",
        """\
        auto& answer = updates.answers[updates.turn ^= 1];
        answer.assign(compressed.data, compressed.data + compressed.size);
        updates.merged.tensor = answer.data();
""",
        _ANSWER_REASON,
    ),
    Rule("byteps/server/server.cc", "update_buf_[key]", "GetUpdateBuf(key)", "as above", 6),
    Rule("byteps/server/server.cc", "update_buf_[msg.key]", "GetUpdateBuf(msg.key)", "as above", 2),
)

ANSWER_RULES = (
    Rule(
        "byteps/server/server.cc",
        """\
    if (is_engine_blocking_ || !sync_mode_) {
      SendPullResponse(type, key, req_meta, server);
""",
        """\
    if (!sync_mode_) {
      ps::KVPairs<char> answer;  // a copy: the next push is added in place, maybe before this has left
      answer.keys = {EncodeKey(key)};
      answer.lens = {static_cast<int>(stored->len)};
      answer.vals.CopyFrom(reinterpret_cast<char*>(stored->tensor), stored->len);
      server->Response(req_meta, answer);
    } else if (is_engine_blocking_) {
      SendPullResponse(type, key, req_meta, server);
""",
        "see docs/corrections.md: an asynchronous server ended at its first pull, looking for what was never set",
    ),
)

WHOLE_RULES = (
    Rule(
        "byteps/server/server.cc",
        "void BytePSHandler(const ps::KVMeta& req_meta,",
        """\
// What a worker has sent of an asynchronous update that is not there as a whole, by sender. One thread at a time.
struct OpenUpdate {
  bool open = false;
  std::vector<std::pair<uint64_t, ps::KVPairs<char>>> parts;
};
std::unordered_map<int, OpenUpdate> open_updates_;
constexpr int64_t kUpdateBegins = 0x50524f5048455442;  // PROPHETB
constexpr int64_t kUpdateEnds = 0x50524f5048455445;    // PROPHETE

// Takes an asynchronous push that begins or ends an update, or comes in between; false for any other.
bool TakeIntoUpdate(uint64_t key, const ps::KVMeta& req_meta, const ps::KVPairs<char>& req_data,
                    ps::KVServer<char>* server) {
  int64_t word = 0;
  if (req_data.vals.size() == sizeof(word)) memcpy(&word, req_data.vals.data(), sizeof(word));
  auto& update = open_updates_[req_meta.sender];
  if (word == kUpdateBegins) {
    update.parts.clear();  // of a worker that ended amid an update
    update.open = true;
  } else if (word == kUpdateEnds) {
    for (auto& part : update.parts) {
      auto stored = GetStore(part.first);
      auto bytes = std::min(stored->len, part.second.vals.size());
      CHECK_GE(bps_reducer_->sum((void*)stored->tensor, (void*)part.second.vals.data(), bytes,
                                 bps_reducer_->GetDataType(stored->dtype)),
               0);
    }
    update.parts.clear();
    update.open = false;
  } else if (update.open) {
    update.parts.emplace_back(key, req_data);
  } else {
    return false;
  }
  SendPushResponse(key, req_meta, server);
  return true;
}

void BytePSHandler(const ps::KVMeta& req_meta,""",
        _WHOLE_REASON,
    ),
    Rule(
        "byteps/server/server.cc",
        "    if (!stored->tensor) {\n      if (sync_mode_ &&",
        "    if (!sync_mode_ && stored->tensor && TakeIntoUpdate(key, req_meta, req_data, server)) return;\n\n"
        "    if (!stored->tensor) {\n      if (sync_mode_ &&",
        _WHOLE_REASON,
    ),
)

COPY_RULES = (
    Rule(
        "byteps/common/core_loops.cc",
        "(char *)(task->gpu_ptr) + offset",
        "(char *)(tensor->data()) + offset",
        "see docs/corrections.md; without a GPU there is one address space, and this round's tensor says where it is",
        3,
    ),
)

ARRAY_RULES = (
    Rule(
        "byteps/mxnet/ops.cc",
        """\
  void* cpubuff = (device == CPU_DEVICE_ID)
                      ? const_cast<void*>(
                            std::make_shared<MXTensor<NDArray>>(tensor_copy.get())->data())
                      : nullptr;
  common::InitTensor(context, size, dtype, cpubuff);
""",
        "  common::InitTensor(context, size, dtype, nullptr);\n",
        "see docs/corrections.md; where an array lies is asked again when MXNet's engine has made it",
    ),
)

_COUNT_REASON = "what the last task belongs to may be gone once it has been handed over; see docs/corrections.md"

COUNT_RULES = (
    Rule(
        "byteps/common/operations.cc",
        "  unsigned int accumulated = 0;\n",
        "  BPS_CHECK(e->tensor || e->output);\n"
        "  const auto whole = (e->tensor ? e->tensor : e->output)->size();\n"
        "  unsigned int accumulated = 0;\n",
        _COUNT_REASON,
    ),
    Rule(
        "byteps/common/operations.cc",
        "  auto tensor = (e->tensor ? e->tensor : e->output);\n"
        "  BPS_CHECK(tensor);\n"
        "  BPS_CHECK_EQ(accumulated, tensor->size())\n",
        "  BPS_CHECK_EQ(accumulated, whole)\n",
        _COUNT_REASON,
    ),
)

_HASH_REASON = "the text was read after its temporary string had been destroyed: workers could pick different servers"

HASH_RULES = (
    Rule(
        "byteps/common/global.cc",
        "  auto str = std::to_string(key).c_str();\n",
        "  const std::string text = std::to_string(key);\n  auto str = text.c_str();\n",
        _HASH_REASON,
        3,
    ),
)

LAUNCH_RULES = (
    Rule(
        "launcher/launch.py",
        "i, local_size, command, allocations[i]])",
        "i, local_size, command, allocations[i] if i < len(allocations or ()) else None])",
        "see docs/corrections.md: on a machine with few cores there is no allocation for the process",
    ),
)

_PS_LITE = ("torch", "mxnet", "server")
_CORE = ("torch", "mxnet")
_ZMQ_HEADER = "#include <zmq.h>\n"
_ZMQ_CLASS = b"N2ps6ZMQVanE"
"""Name at run time of ps-lite's ZeroMQ class; a ps-lite for RDMA or UCX that can also use ZeroMQ has it as well."""

CORRECTIONS = (
    Correction(
        "receiving",
        "idle threads spin under the one lock that every send needs: slow, and most of two cores",
        _PS_LITE,
        RECEIVE_RULES,
        _ZMQ_CLASS,
        _ZMQ_VAN,
        _ZMQ_HEADER,
    ),
    Correction("starting", "about one start in five hangs", _PS_LITE, START_RULES, _ZMQ_CLASS, _ZMQ_VAN, _ZMQ_HEADER),
    Correction(
        "sending",
        "a job may stop for good with some 1,000 messages queued on a connection",
        _PS_LITE,
        QUEUE_RULES,
        _ZMQ_CLASS,
        _ZMQ_VAN,
        _ZMQ_HEADER,
    ),
    Correction(
        "stopping",
        "a job may not end: a node's last messages are dropped",
        _PS_LITE,
        STOP_RULES,
        _ZMQ_CLASS,
        _ZMQ_VAN,
        _ZMQ_HEADER,
    ),
    Correction(
        "freeing",
        "workers and servers grow by 13 to 16 kB with each message, megabytes a second",
        _PS_LITE,
        FREE_RULES,
        _ZMQ_CLASS,
        _ZMQ_VAN,
        _ZMQ_HEADER,
    ),
    Correction(
        "asking",
        "a few of 400 new MXNet arrays that are sent at once end with memory that nobody wrote",
        ("mxnet",),
        ARRAY_RULES,
        b"byteps_mxnet_push_pull_async\0",
        "byteps/mxnet/ops.cc",
        '#include "ops.h"\n',
    ),
    Correction(
        "counting",
        "a job of MXNet may crash or hang where the machine is busy: an array is asked that may be gone",
        ("mxnet",),
        COUNT_RULES,
        b"byteps_mxnet_push_pull_async\0",
        "byteps/common/operations.cc",
        '#include "operations.h"\n',
    ),
    Correction(
        "summing",
        "workers may end with different weights: a server overwrites sums that are still on their way",
        ("server",),
        SERVER_RULES,
        b"_ZN6byteps6common10compressor",
        "byteps/server/server.cc",
        '#include "server.h"\n',
        tells=True,  # the server before 0.2.5, which knows no compression, sums in another place
    ),
    Correction(
        "answering",
        "with BYTEPS_ENABLE_ASYNC a server ends at its first pull",
        ("server",),
        ANSWER_RULES,
        b"byteps_server\0",
        "byteps/server/server.cc",
        '#include "server.h"\n',
    ),
    Correction(
        "mixing",
        "with BYTEPS_ENABLE_ASYNC workers pull weights that have half of another's update",
        ("server",),
        WHOLE_RULES,
        b"byteps_server\0",
        "byteps/server/server.cc",
        '#include "server.h"\n',
    ),
    Correction(
        "copying",
        "push_pull of a new CPU tensor under an old name returns memory that nobody wrote",
        _CORE,
        COPY_RULES,
        b"_ZN6byteps6common8PushLoopEv\0",
        "byteps/common/core_loops.cc",
        '#include "core_loops.h"\n',
    ),
    Correction(
        "placing",
        "workers may send a key to different servers, and wait for ever",
        _CORE,
        HASH_RULES,
        b"_ZN6byteps6common12BytePSGlobal9Hash_DJB2Em\0",
        "byteps/common/global.cc",
        '#include "global.h"\n',
    ),
    Correction(
        "launching",
        "bpslaunch ends in an IndexError on one or two cores",
        ("launcher",),
        LAUNCH_RULES,
        b"allocate_cpu",
        tells=True,
    ),
)

RULES = tuple(rule for correction in CORRECTIONS for rule in correction.all_rules)
