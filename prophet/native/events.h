// The record of what happened to every task, for the profiler, the monitor and the figures.
//
// Rule of this file: the layout that Python reads (prophet/model.py EVENT_DTYPE) and a bounded log.
// The caller locks.
#ifndef PROPHET_NATIVE_EVENTS_H_
#define PROPHET_NATIVE_EVENTS_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace prophet {

enum class EventKind : uint8_t { kAdd = 0, kStart = 1, kFinish = 2 };
enum class QueueKind : uint8_t { kPush = 0, kPull = 1 };

struct Event {
  double time_s;  // steady clock
  uint32_t gradient;
  uint32_t bytes;
  uint16_t partition;
  uint8_t queue;
  uint8_t kind;
  uint32_t reserved;
};
static_assert(sizeof(Event) == 24, "EVENT_DTYPE in prophet/model.py mirrors this struct");

// Keeps the newest events; the oldest are dropped, and counted, when nobody drains it.
class EventLog {
 public:
  explicit EventLog(size_t capacity) : ring_(capacity) {}

  void append(const Event& event) {
    ring_[(first_ + size_) % ring_.size()] = event;
    if (size_ < ring_.size()) {
      ++size_;
    } else {
      first_ = (first_ + 1) % ring_.size();
      ++dropped_;
    }
  }

  size_t drain(Event* out, size_t capacity) {
    size_t count = std::min(size_, capacity);
    for (size_t i = 0; i < count; ++i) out[i] = ring_[(first_ + i) % ring_.size()];
    first_ = (first_ + count) % ring_.size();
    size_ -= count;
    return count;
  }

  uint64_t dropped() const { return dropped_; }

 private:
  std::vector<Event> ring_;
  size_t first_ = 0;
  size_t size_ = 0;
  uint64_t dropped_ = 0;
};

}  // namespace prophet

#endif  // PROPHET_NATIVE_EVENTS_H_
