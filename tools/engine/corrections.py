"""Edits that mend faults in BytePS 0.2.5.post15 and its ps-lite which made jobs hang, crash or crawl.

They are in the engine, so every policy runs on the same mended base and comparisons between policies stay fair.
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
        "    CHECK(receiver_ != NULL)\n",
        "    Unbound(receiver_);\n    CHECK(receiver_ != NULL)\n",
        "see the docstring",
    ),
)
