// Frames in flight in one direction of a link: first in, first out, each due a fixed time after its arrival.
//
// Rule of this file: memory, order and arithmetic; the time is passed in, in nanoseconds of a single clock. relay.cc
// has the sockets and the clock.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <utility>
#include <vector>

namespace prophet {

// Largest piece that segmentation offload hands over, with Ethernet and virtio headers.
inline constexpr size_t kFrameBytes = 65536 + 256;
// 20 ms of 9,000-byte frames at 14 Gbit/s, or 270 MB of the largest frames. More frames are dropped and counted.
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

// Lateness of sent frames: exact mean and maximum, percentiles rounded up to a power of about the square root of two.
class Lateness {
 public:
  void add(int64_t late_ns) {
    ++count_;
    sum_ns_ += late_ns;
    max_ns_ = std::max(max_ns_, late_ns);
    size_t bin = 0;
    for (int64_t bound = kFirst_ns; bin + 1 < bins_.size() && late_ns > bound; bound = next(bound)) ++bin;
    ++bins_[bin];
  }
  uint64_t count() const { return count_; }
  int64_t max_ns() const { return max_ns_; }
  int64_t mean_ns() const { return count_ == 0 ? 0 : sum_ns_ / static_cast<int64_t>(count_); }
  // Upper bound on the lateness of this share of all frames.
  int64_t percentile_ns(double share) const {
    uint64_t seen = 0;
    int64_t bound = kFirst_ns;
    for (size_t bin = 0; bin < bins_.size(); ++bin, bound = next(bound)) {
      seen += bins_[bin];
      if (static_cast<double>(seen) >= share * static_cast<double>(count_)) return std::min(bound, max_ns_);
    }
    return max_ns_;
  }

 private:
  static constexpr int64_t kFirst_ns = 1000;
  static int64_t next(int64_t bound) { return bound + bound * 53 / 128; }

  std::array<uint64_t, 48> bins_{};  // up to 12 s
  uint64_t count_ = 0;
  int64_t sum_ns_ = 0, max_ns_ = 0;
};

}  // namespace prophet
