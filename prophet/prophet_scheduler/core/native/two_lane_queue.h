// Two lanes for the pushes and the pulls of one worker, and the rule between them.
//
// Rule of this file: how the lanes affect each other. A pure state machine like queue.h, which has a single lane. The
// BytePS hook, the simulator, replays and tests all drive this same class.
//
// Requests first. Once a task is added to the pull lane, the push lane starts none until the pull lane has been asked
// and has nothing more to start, as long as the wire is predicted to be busy
// (docs/decisions/requests-before-pushes.md).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "queue.h"

namespace prophet {

enum class QueueKind : uint8_t { kPush = 0, kPull = 1 };

inline constexpr double kMostForRequests_s = 1e-3;  // sending a request takes about 0.1 ms

// Null means arrival order without limits.
struct TwoLanePlan {
  std::shared_ptr<const QueuePlan> push, pull;
};

class TwoLaneQueue {
 public:
  explicit TwoLaneQueue(double watchdog_s = 1.0, size_t most_in_flight = kUnbounded)
      : push_(watchdog_s, most_in_flight), pull_(watchdog_s, most_in_flight) {}

  // As ScheduledQueue's functions of the same names, for one lane.
  bool add(QueueKind kind, const Task& task, double now) {
    if (!at(kind).add(task, now)) return false;
    if (kind == QueueKind::kPull && requests_first_until_ == kNoRequest) {
      requests_first_until_ = std::min(push_.wire_free_at(), now + kMostForRequests_s);
    }
    return true;
  }
  Decision get(QueueKind kind, double now) {
    return ask(kind, now, [now](ScheduledQueue& lane) { return lane.get(now); });
  }
  Decision look(QueueKind kind, double now) {
    return ask(kind, now, [now](ScheduledQueue& lane) { return lane.look(now); });
  }
  bool finish(QueueKind kind, uint64_t id, double now) { return at(kind).finish(id, now); }

  // Time until which pushes let requests go first; kNoRequest if no task was added to the pull lane since it last had
  // nothing to start. Only replays set it: their record does not have the times when the pull lane was asked in vain.
  static constexpr double kNoRequest = -1.0;
  double requests_first_until() const { return requests_first_until_; }
  void set_requests_first_until(double until) { requests_first_until_ = until; }

  // Returns true while pushes let requests go first. Then ask the pull lane before the push lane.
  bool requests_first(double now) const { return now < requests_first_until_; }

  void set_plan(TwoLanePlan plan) {
    push_.set_plan(std::move(plan.push));
    pull_.set_plan(std::move(plan.pull));
  }

  // Drops all tasks, pending or in flight, because their engine is gone. The plan stays.
  void clear() {
    push_.clear();
    pull_.clear();
    requests_first_until_ = kNoRequest;
  }

  const ScheduledQueue& lane(QueueKind kind) const { return kind == QueueKind::kPush ? push_ : pull_; }
  bool empty() const { return push_.empty() && pull_.empty(); }
  uint64_t watchdog_releases() const { return push_.watchdog_releases() + pull_.watchdog_releases(); }
  uint64_t unanswered_releases() const { return push_.unanswered_releases() + pull_.unanswered_releases(); }

 private:
  ScheduledQueue& at(QueueKind kind) { return kind == QueueKind::kPush ? push_ : pull_; }

  template <typename Ask>
  Decision ask(QueueKind kind, double now, Ask ask) {
    if (kind == QueueKind::kPush && requests_first(now)) return Decision{false, Task{}, requests_first_until_};
    Decision decision = ask(at(kind));
    if (kind == QueueKind::kPull && !decision.start) {
      decision.frees_push = std::exchange(requests_first_until_, kNoRequest) != kNoRequest;
    }
    return decision;
  }

  ScheduledQueue push_, pull_;
  double requests_first_until_ = kNoRequest;
};

}  // namespace prophet
