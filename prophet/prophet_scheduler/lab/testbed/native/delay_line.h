// Frames in flight in one direction of a link: first in, first out, each due a fixed time after its arrival.
//
// Rule of this file: memory, order and arithmetic; the time is passed in, in nanoseconds of a single clock. relay.cc
// has the sockets and the clock.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <utility>
#include <vector>

namespace prophet {

// Largest piece that segmentation offload hands over, with Ethernet and virtio headers.
inline constexpr size_t kFrameBytes = 65536 + 256;
// 20 ms of 9,000-byte frames at 14 Gbit/s, or 270 MB of the largest frames. More frames are dropped.
inline constexpr size_t kMostFrames = 4096;

using Buffer = std::unique_ptr<char[]>;

struct Frame {
  Buffer bytes;
  size_t size;
  int64_t due_ns;
};

class DelayLine {
 public:
  explicit DelayLine(int64_t delay_ns) : delay_ns_(delay_ns) {}

  // Returns a buffer of kFrameBytes: the one given back last, which may still be in the CPU's caches.
  Buffer buffer() {
    if (spare_.empty()) return Buffer(new char[kFrameBytes]);
    Buffer last = std::move(spare_.back());
    spare_.pop_back();
    return last;
  }
  void give_back(Buffer buffer) { spare_.push_back(std::move(buffer)); }

  bool full() const { return waiting_.size() >= kMostFrames; }
  void add(Buffer bytes, size_t size, int64_t arrived_ns) {
    // No frame overtakes another, whatever their timestamps.
    last_due_ns_ = std::max(last_due_ns_, arrived_ns + delay_ns_);
    waiting_.push_back({std::move(bytes), size, last_due_ns_});
  }

  // Number of frames that are due, at most `most`; due frames are at the front.
  size_t due(int64_t now_ns, size_t most) const {
    size_t count = 0;
    while (count < std::min(most, waiting_.size()) && waiting_[count].due_ns <= now_ns) ++count;
    return count;
  }
  const Frame& frame(size_t place) const { return waiting_[place]; }
  void remove_first() {
    give_back(std::move(waiting_.front().bytes));
    waiting_.pop_front();
  }

  static constexpr int64_t kNever = INT64_MAX;
  int64_t next_due_ns() const { return waiting_.empty() ? kNever : waiting_.front().due_ns; }

 private:
  const int64_t delay_ns_;
  int64_t last_due_ns_ = 0;
  std::deque<Frame> waiting_;
  std::vector<Buffer> spare_;
};

}  // namespace prophet
