// The record of what happened to every task, for the profiler, the monitor, the figures and the replay.
//
// Rule of this file: the layout that Python reads (core/events.py EVENT_DTYPE) and a bounded log.
// The caller locks, and appends in the order in which it calls the queue.
//
// Events of the queue. Beside what happens to tasks the log has what else the queue's decisions follow from, so that a
// record can be replayed (simulate/replay.py): which plan was taken up, and where the queue knew of no task.
// That is where a replay can begin again after events that were lost. Such an event is about both lanes, and its
// `gradient` is the number of the plan in force.
#ifndef PROPHET_NATIVE_EVENTS_H_
#define PROPHET_NATIVE_EVENTS_H_

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
  kPlan = 3,       // of the queue: this plan holds from here
  kForgotten = 4,  // of the queue: every task was forgotten, because the engine that had them is gone
  kEmpty = 5,      // of the queue: nothing waits and nothing is in flight
};

struct Event {
  double time_s;  // steady clock
  uint32_t gradient;
  uint32_t bytes;
  uint16_t partition;
  uint8_t queue;
  uint8_t kind;
  uint32_t gap;  // other than 0 where events before this one are lost, or can have no finish: how many, at least
};
static_assert(sizeof(Event) == 24, "EVENT_DTYPE in core/events.py mirrors this struct");

inline constexpr uint8_t kBothLanes = 2;

inline Event queue_event(EventKind kind, double now, uint32_t plan) {
  return Event{now, plan, 0, 0, kBothLanes, static_cast<uint8_t>(kind), 0};
}

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

  // What is in flight will have no finish: the engine that had it is gone. Nothing where that was said just before.
  void forgotten(double now, uint32_t plan) {
    if (gap_ != 0) return;
    append(queue_event(EventKind::kForgotten, now, plan));
    gap_ = 1;
  }

  // Nothing waits and nothing is in flight. Once between two drains is enough to begin again at.
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

#endif  // PROPHET_NATIVE_EVENTS_H_
