// The record of what happened to every task, for the profiler, the monitor and the figures.
//
// Rule of this file: the layout that Python reads (prophet/model.py EVENT_DTYPE) and a bounded log.
// The caller locks.
#ifndef PROPHET_NATIVE_EVENTS_H_
#define PROPHET_NATIVE_EVENTS_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <utility>

namespace prophet {

enum class EventKind : uint8_t { kAdd = 0, kStart = 1, kFinish = 2 };

struct Event {
  double time_s;  // steady clock
  uint32_t gradient;
  uint32_t bytes;
  uint16_t partition;
  uint8_t queue;
  uint8_t kind;
  uint32_t gap;  // other than 0 where events before this one are lost, or can have no finish: how many, at least
};
static_assert(sizeof(Event) == 24, "EVENT_DTYPE in prophet/model.py mirrors this struct");

// Keeps the newest events. It grows with the rate at which they come between two drains, up to `capacity`; beyond that
// the oldest are dropped and counted, and the first event after them says so: what began before is unknown from there.
class EventLog {
 public:
  explicit EventLog(size_t capacity) : capacity_(capacity) {}

  void append(Event event) {
    event.gap = std::exchange(gap_, 0);
    if (events_.size() == capacity_) {
      uint32_t lost = events_.front().gap + 1;
      events_.pop_front();
      ++dropped_;
      (events_.empty() ? event : events_.front()).gap += lost;
    }
    events_.push_back(event);
  }

  // What is in flight will have no finish: the engine that had it is gone.
  void mark_gap() { gap_ = 1; }

  size_t drain(Event* out, size_t capacity) {
    size_t count = std::min(events_.size(), capacity);
    std::copy_n(events_.begin(), count, out);
    events_.erase(events_.begin(), events_.begin() + count);
    return count;
  }

  uint64_t dropped() const { return dropped_; }

 private:
  const size_t capacity_;
  std::deque<Event> events_;
  uint32_t gap_ = 0;  // of the next event
  uint64_t dropped_ = 0;
};

}  // namespace prophet

#endif  // PROPHET_NATIVE_EVENTS_H_
