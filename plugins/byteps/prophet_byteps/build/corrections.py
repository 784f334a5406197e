"""Edits that mend faults in BytePS 0.2.5.post15 and its ps-lite which made jobs hang, crash or crawl.

They are in the CPU build, so every contender on BytePS runs on the same mended base and comparisons stay fair.

Receiving. ps-lite's ZeroMQ van receives without blocking, in a loop, under the one mutex that every send needs: idle
threads keep the mutex from those that have something to do. They now wait, outside the mutex, on the socket's file
descriptor (ZMQ_FD). That descriptor is edge-triggered, and a send on the same socket may take notice of an arrival
(ZeroMQ processes commands on every call), after which it stays silent: so a send that leaves ZMQ_POLLIN set wakes the
receive thread through an eventfd.

Starting. A worker created the receive thread of a new socket before it connected that socket. ZeroMQ sockets are not
for two threads at once: the thread received while this one was inside zmq_setsockopt and zmq_connect, without the
mutex. A connection request lost in that way is never made, and the job waits for ever, at the first barrier or at the
first key of one server. The thread now starts when the socket is connected.

Sending. A socket's high-water mark (1,000 messages) made a send block while it held the mutex, and the receive that
would have made room needs the mutex: with a thousand small gradients in flight, everything stopped. There is no mark
any more; what is in flight is bounded by the queues above.

Stopping. With a linger of 0 a node that closed its sockets dropped what was still in them: the scheduler's last
answers, and others waited for them.

Freeing. Of every message that arrived, the part that describes it was never freed, nor the list of its parts; and
ZeroMQ keeps all that it read together with a small part for as long as that part is kept. At 1 Gbit/s and partitions of
128 KiB a worker grew by 37 MB a second, one of stock BytePS with its large partitions by 2.

Summing. A server keeps one buffer a key and overwrites it at the first push of a new round, while the answer to a
slower worker's pull may still be on its way out of that memory (it is sent without a copy), so workers ended with
different weights. Rounds now take turns between two buffers. A compressed sum lay in the compressor's one buffer, with
the same end; it, too, is now kept in two. And the table of keys was grown by one thread while
others searched it.

Copying. What a tensor on the processor sent was read from, and its result written to, the memory of the first tensor
that ever had its name, which may be gone by then: `push_pull` into a new tensor returned memory that nobody wrote.

Asking. `push_pull` asked an array of MXNet for its memory in the program's own thread, which allocates it where MXNet's
has yet to: with both at it the array was left with memory that nobody wrote, in 3 to 10 of 400 new arrays.

Placing. The hash functions read a number's text through a pointer into a string that no longer existed.

Launching. bpslaunch gives each process cores of its own. It takes half of the machine's cores for hyper-threads, and
gives away half of the rest. Of two cores nothing was left, and it ended in an IndexError; without NUMA information, in
a TypeError. A process for which there are no cores now starts on all of them, as its worker() provides for.
"""

from __future__ import annotations

from .rules import Rule

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
        "see the docstring: receive threads wait for arrivals instead of spinning",
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
        "it let a receive thread loose on a socket that this thread was about to connect; see the docstring",
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
        "see the docstring: no send may block while it holds mu_",
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

_LEAK_REASON = "see the docstring: each message that arrived left memory behind"

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

_SPARE_REASON = "see the docstring: a fast worker's next push overwrote sums a slower worker had yet to receive"
_ANSWER_REASON = "see the docstring: the compressor's one buffer was overwritten while an answer was still on its way"

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

COPY_RULES = (
    Rule(
        "byteps/common/core_loops.cc",
        "(char *)(task->gpu_ptr) + offset",
        "(char *)(tensor->data()) + offset",
        "see the docstring; without a GPU there is one address space, and the tensor of this round says where it is",
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
        "see the docstring; where an array lies is asked again when MXNet's engine has made it",
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
        "see the docstring: on a machine with few cores there is no allocation for the process",
    ),
)

RULES = (
    *RECEIVE_RULES,
    *START_RULES,
    *QUEUE_RULES,
    *STOP_RULES,
    *FREE_RULES,
    *ARRAY_RULES,
    *SERVER_RULES,
    *COPY_RULES,
    *HASH_RULES,
    *LAUNCH_RULES,
)
