// The delay of a link: receives Ethernet frames on either of two interfaces and sends them from the other, a fixed time
// after their arrival.
//
// Rule of this file: sockets and the clock; delay_line.h has the waiting frames.
//
// The relay has packet sockets on the ends of two veth pairs, so it needs only CAP_NET_RAW in the network namespace.
// Frames keep their virtio headers (PACKET_VNET_HDR): large frames of segmentation offload and frames whose checksum is
// still missing pass unchanged, up to 64 KiB in one piece, at the cost of a small frame.
//
// The delay counts from the kernel's arrival timestamp (SO_TIMESTAMPNS), so waking up late costs nothing if the frame
// is not due yet. The relay waits in ppoll without timer slack and never busy-polls.
//
// When standard input closes, the relay exits, so it cannot outlive its owner. It also exits, with a line on standard
// error, if it cannot pass on a frame unchanged: a link that changes frames is worse than none.
#include <arpa/inet.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <exception>
#include <stdexcept>
#include <string>

#include "delay_line.h"

namespace {

using prophet::Buffer;
using prophet::DelayLine;
using prophet::Frame;
using prophet::kFrameBytes;

constexpr size_t kBatch = 32;               // frames per system call
constexpr int kSocketBytes = 64 << 20;      // for frames that arrive while the relay waits for a CPU
constexpr int64_t kSecond_ns = 1000000000;  // nanoseconds
constexpr int kNoError = 0;

[[noreturn]] void fail(const std::string& what, int error = errno) {
  throw std::runtime_error(error == kNoError ? what : what + ": " + std::strerror(error));
}

int64_t nanoseconds(const timespec& time) { return time.tv_sec * kSecond_ns + time.tv_nsec; }

int64_t clock_ns(clockid_t clock) {
  timespec now;
  clock_gettime(clock, &now);
  return nanoseconds(now);
}

bool option(int socket, int level, int name, int value) {
  return setsockopt(socket, level, name, &value, sizeof value) == 0;
}

// Returns a packet socket that is not bound yet and receives nothing.
int open_socket() {
  const int fd = socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC, 0);
  if (fd < 0) fail("no packet socket (CAP_NET_RAW, CONFIG_PACKET)");
  if (!option(fd, SOL_PACKET, PACKET_VNET_HDR, 1)) fail("PACKET_VNET_HDR");
  if (!option(fd, SOL_PACKET, PACKET_IGNORE_OUTGOING, 1)) fail("PACKET_IGNORE_OUTGOING (Linux 4.20)");
  if (!option(fd, SOL_SOCKET, SO_TIMESTAMPNS, 1)) fail("SO_TIMESTAMPNS");
  // Only the machine's root may exceed the limits of socket buffers.
  if (!option(fd, SOL_SOCKET, SO_RCVBUFFORCE, kSocketBytes)) option(fd, SOL_SOCKET, SO_RCVBUF, kSocketBytes);
  if (!option(fd, SOL_SOCKET, SO_SNDBUFFORCE, kSocketBytes)) option(fd, SOL_SOCKET, SO_SNDBUF, kSocketBytes);
  return fd;
}

// One end of the relay: an interface.
class End {
 public:
  explicit End(const char* interface) : interface_(interface), fd_(open_socket()) {
    sockaddr_ll address{};
    address.sll_family = AF_PACKET;
    address.sll_protocol = htons(ETH_P_ALL);
    address.sll_ifindex = static_cast<int>(if_nametoindex(interface));
    if (address.sll_ifindex == 0) fail("interface " + interface_);
    if (bind(fd_, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) fail("interface " + interface_);
  }
  ~End() { close(fd_); }
  End(const End&) = delete;
  End& operator=(const End&) = delete;

  int fd() const { return fd_; }
  const std::string& interface() const { return interface_; }

 private:
  const std::string interface_;
  const int fd_;
};

// One direction.
class Way {
 public:
  Way(End& from, End& to, int64_t delay_ns) : from_(from), to_(to), line_(delay_ns) {
    for (Slot& slot : slots_) slot.buffer = line_.buffer();
  }

  int64_t next_due_ns() const { return line_.next_due_ns(); }

  // Receives at most one batch of frames, to let the other direction proceed; ppoll returns at once for the rest.
  void receive() {
    std::array<mmsghdr, kBatch> messages{};
    std::array<iovec, kBatch> parts;
    for (size_t place = 0; place < kBatch; ++place) {
      parts[place] = {slots_[place].buffer.get(), kFrameBytes};
      msghdr& header = messages[place].msg_hdr;
      header.msg_iov = &parts[place];
      header.msg_iovlen = 1;
      header.msg_control = slots_[place].control.data();
      header.msg_controllen = slots_[place].control.size();
    }
    const int came = recvmmsg(from_.fd(), messages.data(), kBatch, MSG_DONTWAIT, nullptr);
    if (came < 0) {
      if (errno == EAGAIN || errno == EINTR) return;
      fail("receiving from " + from_.interface());
    }
    const int64_t now_ns = clock_ns(CLOCK_MONOTONIC);
    const int64_t offset_ns = now_ns - clock_ns(CLOCK_REALTIME);
    for (int place = 0; place < came; ++place) {
      if (messages[place].msg_hdr.msg_flags & MSG_TRUNC)
        fail("a frame above 64 KiB from " + from_.interface(), kNoError);
      if (line_.full()) continue;  // drop the frame, as a full switch would
      // The wall clock may have been set in between, so bound the timestamp: not in the future, at most a second old.
      const int64_t stamp_ns = stamp(messages[place].msg_hdr) + offset_ns;
      const int64_t arrived_ns = std::clamp(stamp_ns, now_ns - kSecond_ns, now_ns);
      line_.add(std::move(slots_[place].buffer), messages[place].msg_len, arrived_ns);
      slots_[place].buffer = line_.buffer();
    }
  }

  void send_due() {
    while (const size_t due = line_.due(clock_ns(CLOCK_MONOTONIC), kBatch)) {
      std::array<mmsghdr, kBatch> messages{};
      std::array<iovec, kBatch> parts;
      for (size_t place = 0; place < due; ++place) {
        const Frame& frame = line_.frame(place);
        parts[place] = {frame.bytes.get(), frame.size};
        messages[place].msg_hdr.msg_iov = &parts[place];
        messages[place].msg_hdr.msg_iovlen = 1;
      }
      const int gone = sendmmsg(to_.fd(), messages.data(), static_cast<unsigned>(due), 0);
      if (gone < 0) {
        if (errno == EINTR) continue;
        // If the far end's buffer is full, drop the frame too.
        if (errno != ENOBUFS) {
          fail("sending " + std::to_string(line_.frame(0).size) + " bytes to " + to_.interface());
        }
        line_.remove_first();
        continue;
      }
      for (int place = 0; place < gone; ++place) line_.remove_first();
    }
  }

 private:
  struct Slot {
    Buffer buffer;
    alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(timespec))> control;
  };

  // The kernel's arrival timestamp, on the wall clock; if there is none, a time in the future, which counts as now.
  static int64_t stamp(msghdr& header) {
    for (cmsghdr* part = CMSG_FIRSTHDR(&header); part != nullptr; part = CMSG_NXTHDR(&header, part)) {
      if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SO_TIMESTAMPNS) continue;
      timespec time;
      std::memcpy(&time, CMSG_DATA(part), sizeof time);
      return nanoseconds(time);
    }
    return INT64_MAX / 2;
  }

  End& from_;
  End& to_;
  DelayLine line_;
  std::array<Slot, kBatch> slots_;
};

// Takes real-time priority, since a network card does not wait either, or the highest other priority if not allowed.
void take_precedence() {
  prctl(PR_SET_TIMERSLACK, 1);
  sched_param first{};
  first.sched_priority = 1;
  if (sched_setscheduler(0, SCHED_RR, &first) != 0) setpriority(PRIO_PROCESS, 0, -20);
}

void relay(const char* near, const char* far, double delay_s) {
  const int64_t delay_ns = std::llround(delay_s * static_cast<double>(kSecond_ns));
  End left(near), right(far);
  Way there(left, right, delay_ns), back(right, left, delay_ns);
  take_precedence();
  std::puts("ready");
  std::fflush(stdout);
  while (true) {
    std::array<pollfd, 3> waits{{{left.fd(), POLLIN, 0}, {right.fd(), POLLIN, 0}, {STDIN_FILENO, POLLIN, 0}}};
    const int64_t next_ns = std::min(there.next_due_ns(), back.next_due_ns());
    timespec timeout{};
    if (next_ns != DelayLine::kNever) {
      const int64_t left_ns = std::max<int64_t>(0, next_ns - clock_ns(CLOCK_MONOTONIC));
      timeout = {left_ns / kSecond_ns, left_ns % kSecond_ns};
    }
    if (ppoll(waits.data(), waits.size(), next_ns == DelayLine::kNever ? nullptr : &timeout, nullptr) < 0) {
      if (errno != EINTR) fail("ppoll");
      continue;
    }
    if (waits[0].revents != 0) there.receive();
    if (waits[1].revents != 0) back.receive();
    there.send_due();
    back.send_due();
    if (waits[2].revents != 0) return;
  }
}

template <typename Work>
int with_status(Work&& work) {
  try {
    work();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "the testbed's relay: %s\n", error.what());
    return 1;
  }
  return 0;
}

}  // namespace

extern "C" {

// Relays frames between two interfaces of this network namespace until standard input closes; returns an exit status.
__attribute__((visibility("default"))) int prophet_relay(const char* near, const char* far, double delay_s) {
  return with_status([&] { relay(near, far, delay_s); });
}

// Returns an exit status: 0 if the kernel lets this process run a relay.
__attribute__((visibility("default"))) int prophet_relay_try() {
  return with_status([] { close(open_socket()); });
}

}  // extern "C"
