// Log of events of all tasks, for the profiler, the monitor, figures and replays.
//
// Rule of this file: the layout that Python reads (core/events.py EVENT_DTYPE) and a bounded log.
// The caller locks, and appends events in the order of its calls to the queue.
//
// Events of the queue. Decisions of the queue depend on more than its tasks. For replays (simulate/replay.py) the log
// also says when a plan took effect and when the queue was empty. A replay can restart there after lost events. Such an
// event concerns both lanes, and its `gradient` is the number of the current plan.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <utility>

namespace prophet {

inline constexpr uint32_t kEventVersion = 2;
inline constexpr uint32_t kNoPlan = 0xffffffffu;

enum class EventKind : uint8_t {
  kAdd = 0,
  kStart = 1,
  kFinish = 2,
  kPlan = 3,       // of the queue: this plan takes effect
  kForgotten = 4,  // of the queue: all tasks were dropped, because their engine is gone
  kEmpty = 5,      // of the queue: nothing waits and nothing is in flight
};

struct Event {
  double time_s;  // steady clock
  uint32_t gradient;
  uint32_t bytes;
  uint16_t partition;
  uint8_t queue;
  uint8_t kind;
  uint32_t gap;  // minimum number of events before this one that are lost, or whose tasks will never finish
};
static_assert(sizeof(Event) == 24, "EVENT_DTYPE in core/events.py mirrors this struct");

inline constexpr uint8_t kBothLanes = 2;

inline Event queue_event(EventKind kind, double now, uint32_t plan) {
  return Event{now, plan, 0, 0, kBothLanes, static_cast<uint8_t>(kind), 0};
}

// Keeps the newest events, as many as arrive between two drains, up to `capacity`. Beyond that it drops and counts the
// oldest, and marks the first event after them with a gap: tasks that began before a gap are unknown after it.
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

  // Tasks in flight will never finish, because their engine is gone. Does nothing if this was just logged.
  void forgotten(double now, uint32_t plan) {
    if (gap_ != 0) return;
    append(queue_event(EventKind::kForgotten, now, plan));
    gap_ = 1;
  }

  // Nothing waits and nothing is in flight. One such event between two drains is enough for a replay to restart.
  void empty(double now, uint32_t plan) {
    if (std::exchange(empty_is_news_, false)) append(queue_event(EventKind::kEmpty, now, plan));
  }

  size_t drain(Event* out, size_t capacity) {
    size_t count = std::min(events_.size(), capacity);
    std::copy_n(events_.begin(), count, out);
    events_.erase(events_.begin(), events_.begin() + count);
    empty_is_news_ |= count > 0;
    return count;
  }

  uint64_t dropped() const { return dropped_; }

 private:
  const size_t capacity_;
  std::deque<Event> events_;
  uint32_t gap_ = 0;  // of the next event
  bool empty_is_news_ = false;
  uint64_t dropped_ = 0;
};

}  // namespace prophet
