// The scheduled queue, which decides which task goes on the wire next.
//
// Rule of this file: a pure state machine. The caller passes the time in; there is no clock, thread, lock, socket
// or log here. One queue is one lane. Hosts drive two of them together, see two_lane_queue.h.
//
// A task (one partition of one gradient) is added when its data is ready, leaves once through get(),
// and is in flight until finish(). A QueuePlan sets four knobs: order, credit, deadline and group.
// Invariants, property-tested in tests/core/test_queue.py:
//   - every task, even one without bytes, leaves exactly once; bytes in flight are never negative and end at 0;
//   - a task never starts while a more urgent ready one fits;
//   - progress: with nothing in flight, a ready task waits at most for a predicted deadline, and never longer than
//     the watchdog allows. So without deadlines and groups, the watchdog releases a task only if others are in
//     flight and none has finished for that long;
//   - no plan, or an error, means arrival order without limits except the host's own;
//   - a task waits for a place only while others occupy places, and never if those are all less urgent.
//
// Places (docs/decisions/places-in-flight.md). Each task in flight occupies one of the host's `most_in_flight` places.
// The more urgent a task is, the more places it may fill: rank -1 (needed right now) all of them, rank 0 all but one,
// and so on down to half. The watchdog may exceed `most_in_flight` by half, and never by more.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <stdexcept>
#include <unordered_map>
#include <utility>
#include <vector>

namespace prophet {

inline constexpr uint64_t kUnlimited = std::numeric_limits<uint64_t>::max();
inline constexpr double kNever = std::numeric_limits<double>::infinity();
// Set in the id of a tensor that is not a gradient of the model, such as a broadcast parameter.
inline constexpr uint32_t kUnprofiledGradient = 0x80000000u;
inline constexpr int32_t kNoGroup = -1;
inline constexpr size_t kUnbounded = std::numeric_limits<size_t>::max();

struct Task {
  uint64_t id = 0;  // unique among tasks that are pending or in flight
  uint32_t gradient = 0;
  uint32_t bytes = 0;
};

struct GradientPlan {
  int32_t rank = 0;            // 0 is the most urgent
  int32_t group = kNoGroup;    // gradients of one group travel as one
  double generation_s = -1.0;  // predicted, after backward began; negative if unknown
};

struct Deadline {
  double time_s = 0;  // after backward began
  int32_t rank = 0;   // of the gradient predicted for that time
};

struct QueuePlan {
  bool ranked = false;  // false: arrival order
  // For pulls, which may be stuck: only tasks at least as urgent as the candidate count
  // (docs/decisions/no-credit-on-pulls.md).
  bool credit_counts_only_urgent = false;
  uint64_t credit = kUnlimited;             // bytes in flight
  std::vector<Deadline> deadlines;          // by time
  std::map<int32_t, uint64_t> group_bytes;  // size of each group
  std::unordered_map<uint32_t, GradientPlan> gradients;
  double bandwidth = 0;  // bytes per second; 0 if unknown, and then deadlines are not applied
  double overhead_s = 0;
  double deadline_slack_s = 0;  // how late a predicted gradient may be before the queue stops waiting for it

  int32_t rank_of(uint32_t gradient) const {
    if (!ranked) return 0;
    if (gradient & kUnprofiledGradient) return -1;  // needed right now
    auto it = gradients.find(gradient);
    return it == gradients.end() ? static_cast<int32_t>(gradient) : it->second.rank;
  }

  int32_t group_of(uint32_t gradient) const {
    auto it = gradients.find(gradient);
    return it == gradients.end() ? kNoGroup : it->second.group;
  }

  // Group of the gradient that is generated first; kNoGroup if unknown, or if there is no other group.
  int32_t first_group() const {
    double first_s = kNever;
    uint32_t first = 0;
    for (const auto& [gradient, plan] : gradients) {
      if (plan.group == kNoGroup || plan.generation_s < 0) continue;
      // Within one step of the stepwise pattern, the last layer is first.
      if (plan.generation_s < first_s || (plan.generation_s == first_s && gradient > first)) {
        first_s = plan.generation_s;
        first = gradient;
      }
    }
    if (first_s == kNever) return kNoGroup;
    int32_t group = group_of(first);
    for (const auto& [gradient, plan] : gradients) {
      if (plan.group != group) return group;
    }
    return kNoGroup;
  }
};

// Decision of get(). Without a task, `retry_at` is the time from which the answer may differ even if nothing else
// happens (kNever: only an add or a finish can change it).
struct Decision {
  bool start = false;
  Task task;
  double retry_at = kNever;
  bool by_watchdog = false;  // the task was held while nothing moved
  bool unanswered = false;   // and it lacked credit or a place, which only a finish returns
  bool frees_push = false;   // pull lane: pushes no longer have to let requests go first
};

class ScheduledQueue {
 public:
  explicit ScheduledQueue(double watchdog_s = 1.0, size_t most_in_flight = kUnbounded)
      : watchdog_s_(watchdog_s),
        most_in_flight_(most_in_flight),
        most_ever_(most_in_flight > kUnbounded / 2 ? kUnbounded : most_in_flight + most_in_flight / 2) {
    if (!(watchdog_s >= 0) || most_in_flight == 0) throw std::invalid_argument("a queue that lets nothing go");
  }

  // Returns false, and changes nothing, if the id is already pending or in flight.
  bool add(const Task& task, double now) {
    if (!known_.insert({task.id, State{}}).second) return false;
    take_up_at_new_iteration(task.gradient);
    note_generation(task.gradient, now);
    Entry entry{rank(task.gradient), next_sequence_++, task, now};
    make_ready_or_hold(entry);
    return true;
  }

  Decision get(double now) {
    Decision decision = look(now);
    if (!decision.start) return decision;
    watchdog_releases_ += decision.by_watchdog;
    unanswered_releases_ += decision.unanswered;
    start(now);
    return decision;
  }

  // Decides as get() does, but does not start the task. A host that asks in vain changes only the watchdog's state.
  Decision look(double now) {
    release_overdue_groups(now);
    if (ready_.empty()) {
      held_since_ = kNever;
      return Decision{false, Task{}, next_group_check()};
    }
    const Entry& candidate = ready_.front();
    double retry_at = may_start(candidate, now);
    if (retry_at <= now) return Decision{true, candidate.task, now};
    // The watchdog: once nothing has moved for `watchdog_s`, the ready task goes, and is reported.
    if (held_since_ == kNever) held_since_ = now;
    if (in_flight_.tasks >= most_ever_) return Decision{false, Task{}, kNever};
    // The same sum as in `retry_at`: a difference could round to just below `watchdog_s`, and the host ask forever.
    double release_at = held_since_ + watchdog_s_;
    if (now >= release_at) return Decision{true, candidate.task, now, true, retry_at == kNever};
    return Decision{false, Task{}, std::min(retry_at, release_at)};
  }

  // Predicted time at which all started tasks will have left the wire.
  double wire_free_at() const { return wire_free_at_; }

  // Returns false if no such task is in flight.
  bool finish(uint64_t id, double now) {
    auto it = known_.find(id);
    if (it == known_.end() || !it->second.in_flight) return false;
    const State& state = it->second;
    in_flight_ -= state.bytes;
    auto by_rank = in_flight_by_rank_.find(state.rank);
    by_rank->second -= state.bytes;
    if (in_flight_.tasks == 0) wire_free_at_ = now;
    if (by_rank->second.tasks == 0) in_flight_by_rank_.erase(by_rank);
    known_.erase(it);
    held_since_ = kNever;
    return true;
  }

  // Replaces the plan; null means arrival order without limits. Re-ranks pending tasks. A plan with groups takes effect
  // when the next iteration begins: in the middle of one, members that a group waits for may already be gone.
  void set_plan(std::shared_ptr<const QueuePlan> plan) {
    first_group_ = plan && next_sequence_ > 0 ? plan->first_group() : kNoGroup;
    past_first_group_ = false;
    if (first_group_ == kNoGroup) {
      next_plan_ = nullptr;
      take_up(std::move(plan));
    } else {
      next_plan_ = std::move(plan);
    }
  }

  // Drops all tasks, pending or in flight, because their engine is gone. The plan stays.
  void clear() {
    ready_.clear();
    groups_.clear();
    known_.clear();
    in_flight_by_rank_.clear();
    in_flight_ = Flying{};
    held_since_ = kNever;
    wire_free_at_ = 0;
    progress_s_ = -1.0;
    backward_began_at_ = kNever;
    past_first_group_ = false;
  }

  size_t pending() const {
    size_t count = ready_.size();
    for (const auto& [group, waiting] : groups_) count += waiting.entries.size();
    return count;
  }
  size_t in_flight() const { return in_flight_.tasks; }
  bool empty() const { return known_.empty(); }
  uint64_t in_flight_bytes() const { return in_flight_.bytes; }
  uint64_t watchdog_releases() const { return watchdog_releases_; }
  // Those of the releases that waited for a finish: others were in flight, and none finished in that time. The rest
  // waited for a predicted gradient, of a deadline or a group, that did not appear.
  uint64_t unanswered_releases() const { return unanswered_releases_; }

 private:
  struct Entry {
    int32_t rank;
    uint64_t sequence;
    Task task;
    double added_s;
  };
  // std heap functions keep the greatest element in front, so an entry that goes later must compare as less.
  struct GoesLater {
    bool operator()(const Entry& a, const Entry& b) const {
      return a.rank != b.rank ? a.rank > b.rank : a.sequence > b.sequence;
    }
  };
  struct State {
    bool in_flight = false;
    int32_t rank = 0;
    uint32_t bytes = 0;
  };
  // Tasks may have no bytes, so only the number of tasks tells whether any are in flight.
  struct Flying {
    size_t tasks = 0;
    uint64_t bytes = 0;
    void operator+=(const Flying& other) { tasks += other.tasks, bytes += other.bytes; }
    void operator+=(uint32_t task_bytes) { ++tasks, bytes += task_bytes; }
    void operator-=(uint32_t task_bytes) { --tasks, bytes -= task_bytes; }
  };
  struct WaitingGroup {
    uint64_t bytes = 0;
    std::vector<Entry> entries;
  };

  void take_up(std::shared_ptr<const QueuePlan> plan) {
    plan_ = std::move(plan);
    std::vector<Entry> pending;
    pending.swap(ready_);
    for (auto& [group, waiting] : groups_) {
      pending.insert(pending.end(), waiting.entries.begin(), waiting.entries.end());
    }
    groups_.clear();
    std::sort(pending.begin(), pending.end(), [](const Entry& a, const Entry& b) { return a.sequence < b.sequence; });
    for (Entry& entry : pending) {
      entry.rank = rank(entry.task.gradient);
      make_ready_or_hold(entry);
    }
    held_since_ = kNever;
  }

  int32_t rank(uint32_t gradient) const { return plan_ ? plan_->rank_of(gradient) : 0; }

  int32_t group_of(uint32_t gradient) const {
    return plan_ && !plan_->group_bytes.empty() ? plan_->group_of(gradient) : kNoGroup;
  }

  // An iteration begins when a member of the first-generated group follows a gradient of another group.
  void take_up_at_new_iteration(uint32_t gradient) {
    if (!next_plan_ || next_plan_->gradients.count(gradient) == 0) return;
    if (next_plan_->group_of(gradient) != first_group_) {
      past_first_group_ = true;
    } else if (past_first_group_) {
      take_up(std::exchange(next_plan_, nullptr));
    }
  }

  // A task without bytes is never held: its group may have left without it, and it would wait for the next iteration's.
  void make_ready_or_hold(const Entry& entry) {
    int32_t group = entry.task.bytes > 0 ? group_of(entry.task.gradient) : kNoGroup;
    if (group == kNoGroup) {
      push_ready(entry);
    } else {
      hold_in_group(group, entry);
    }
  }

  void push_ready(const Entry& entry) {
    ready_.push_back(entry);
    std::push_heap(ready_.begin(), ready_.end(), GoesLater());
  }

  // A group travels as one: its members become ready together, once all its bytes are there.
  void hold_in_group(int32_t group, const Entry& entry) {
    WaitingGroup& waiting = groups_[group];
    waiting.bytes += entry.task.bytes;
    waiting.entries.push_back(entry);
    auto size = plan_->group_bytes.find(group);
    if (size == plan_->group_bytes.end() || waiting.bytes >= size->second) release_group(group);
  }

  void release_group(int32_t group) {
    auto it = groups_.find(group);
    std::vector<Entry> entries = std::move(it->second.entries);
    groups_.erase(it);
    int32_t most_urgent = std::numeric_limits<int32_t>::max();
    for (const Entry& entry : entries) most_urgent = std::min(most_urgent, entry.rank);
    for (Entry& entry : entries) {
      entry.rank = most_urgent;
      push_ready(entry);
    }
  }

  double next_group_check() const {
    double earliest = kNever;
    for (const auto& [group, waiting] : groups_) {
      earliest = std::min(earliest, waiting.entries.front().added_s + watchdog_s_);
    }
    return earliest;
  }

  // A member that never appears (a skipped gradient) must not hold the others forever.
  void release_overdue_groups(double now) {
    if (groups_.empty()) return;
    std::vector<int32_t> overdue;
    for (const auto& [group, waiting] : groups_) {
      if (now >= waiting.entries.front().added_s + watchdog_s_) overdue.push_back(group);
    }
    for (int32_t group : overdue) {
      ++watchdog_releases_;
      release_group(group);
    }
  }

  // The generation time of the newest gradient tells how far backward has come, and so when it began.
  void note_generation(uint32_t gradient, double now) {
    if (!plan_ || plan_->deadlines.empty()) return;
    auto it = plan_->gradients.find(gradient);
    if (it == plan_->gradients.end() || it->second.generation_s < 0) return;
    if (it->second.generation_s != progress_s_) {
      progress_s_ = it->second.generation_s;
      backward_began_at_ = now - progress_s_;
    }
  }

  // When the candidate may start: `now` or earlier for "at once", kNever for "only after a finish".
  double may_start(const Entry& candidate, double now) const {
    if (!has_place(candidate)) return kNever;
    if (!plan_) return now;
    if (!fits(candidate)) return kNever;
    double deadline_at = next_deadline(candidate.rank, now);
    if (deadline_at == kNever) return now;
    double finish_at = std::max(now, wire_free_at_) + plan_->overhead_s + candidate.task.bytes / plan_->bandwidth;
    // Constraint 11 of the paper: a transfer must end before a more urgent gradient appears.
    return finish_at <= deadline_at ? now : deadline_at + plan_->deadline_slack_s;
  }

  bool has_place(const Entry& candidate) const {
    if (most_in_flight_ == kUnbounded) return true;
    size_t urgency = static_cast<size_t>(int64_t{std::max(candidate.rank, -1)} + 1);
    return in_flight_.tasks < most_in_flight_ - std::min(urgency, most_in_flight_ / 2);
  }

  bool fits(const Entry& candidate) const {
    if (plan_->credit == kUnlimited) return true;
    Flying counted = in_flight_;
    if (plan_->credit_counts_only_urgent) {
      counted = Flying{};
      for (const auto& [rank, flying] : in_flight_by_rank_) {
        if (rank > candidate.rank) break;
        counted += flying;
      }
    }
    return counted.tasks == 0 || counted.bytes + candidate.task.bytes <= plan_->credit;
  }

  // Returns the next deadline that is not overdue by more than the slack. An overdue one (of a gradient that this
  // iteration skips) neither holds the candidate nor hides the deadlines after it.
  double next_deadline(int32_t candidate_rank, double now) const {
    if (plan_->deadlines.empty() || plan_->bandwidth <= 0 || backward_began_at_ == kNever) return kNever;
    for (const Deadline& deadline : plan_->deadlines) {
      if (deadline.time_s <= progress_s_ || deadline.rank >= candidate_rank) continue;
      double deadline_at = backward_began_at_ + deadline.time_s;
      if (deadline_at + plan_->deadline_slack_s > now) return deadline_at;
    }
    return kNever;
  }

  void start(double now) {
    std::pop_heap(ready_.begin(), ready_.end(), GoesLater());
    Entry entry = ready_.back();
    ready_.pop_back();
    known_[entry.task.id] = State{true, entry.rank, entry.task.bytes};
    in_flight_ += entry.task.bytes;
    in_flight_by_rank_[entry.rank] += entry.task.bytes;
    if (plan_ && plan_->bandwidth > 0) {
      wire_free_at_ = std::max(now, wire_free_at_) + plan_->overhead_s + entry.task.bytes / plan_->bandwidth;
    }
    held_since_ = kNever;
  }

  const double watchdog_s_;
  const size_t most_in_flight_;
  const size_t most_ever_;  // including releases of the watchdog
  std::shared_ptr<const QueuePlan> plan_;
  std::shared_ptr<const QueuePlan> next_plan_;  // a plan with groups, until the next iteration begins
  int32_t first_group_ = kNoGroup;              // of next_plan_
  bool past_first_group_ = false;
  std::vector<Entry> ready_;  // a heap
  std::map<int32_t, WaitingGroup> groups_;
  std::unordered_map<uint64_t, State> known_;  // every task that is pending or in flight
  std::map<int32_t, Flying> in_flight_by_rank_;
  Flying in_flight_;
  uint64_t next_sequence_ = 0;
  uint64_t watchdog_releases_ = 0;
  uint64_t unanswered_releases_ = 0;
  double held_since_ = kNever;
  double wire_free_at_ = 0;
  double progress_s_ = -1.0;
  double backward_began_at_ = kNever;
};

}  // namespace prophet
