// The scheduled queue: which task goes on the wire next.
//
// Rule of this file: a pure state machine. Time is passed in; there is no clock, thread, lock, socket
// or log here. One of these is one lane: hosts drive two of them together, as two_lane_queue.h has them.
//
// A task (one partition of one gradient) is added when its data is there, leaves once through get(),
// and is in flight until finish(). A QueuePlan turns four knobs: order, credit, deadline and group.
// Invariants, property-tested in tests/core/test_queue.py:
//   - every task, one without bytes too, leaves exactly once; what is in flight is never negative and ends at 0;
//   - a task never starts while a more urgent ready one fits;
//   - progress: with nothing in flight a ready task waits at most for a predicted deadline, and never
//     longer than the watchdog bound; so without deadlines and groups the watchdog lets go only past
//     what is in flight and has not ended for so long;
//   - no plan, or an error, means arrival order without limits but the host's own;
//   - a task is held for want of a place only while others have them, and never by less urgent ones alone.
//
// Places. A host whose engine bears only so many messages at once gives `most_in_flight`, and then each task in flight
// takes one of so many places. The more urgent a task is, the more of them it may fill: rank -1 (what somebody waits
// for right now) all of them, rank 0 all but one, and so on down to half. So each rank before that point has a place
// that no less urgent task can take, and a more urgent task goes even where all that is in flight is stuck, as pulls
// may be (docs/decisions/places-in-flight.md). The watchdog may go past by half as much again, and nothing beyond that.
#ifndef PROPHET_NATIVE_QUEUE_H_
#define PROPHET_NATIVE_QUEUE_H_

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
  double generation_s = -1.0;  // predicted, after backward began; negative where unknown
};

struct Deadline {
  double time_s = 0;  // after backward began
  int32_t rank = 0;   // of the gradient that is predicted then
};

struct QueuePlan {
  bool ranked = false;  // false: arrival order
  // For pulls, which may be stuck: what is less urgent than the candidate does not count
  // (docs/decisions/no-credit-on-pulls.md).
  bool credit_counts_only_urgent = false;
  uint64_t credit = kUnlimited;             // bytes in flight
  std::vector<Deadline> deadlines;          // by time
  std::map<int32_t, uint64_t> group_bytes;  // size of each group
  std::unordered_map<uint32_t, GradientPlan> gradients;
  double bandwidth = 0;  // bytes per second; 0 where unknown, and then deadlines are not applied
  double overhead_s = 0;
  double deadline_slack_s = 0;  // how late a predicted gradient may be before nobody waits for it

  int32_t rank_of(uint32_t gradient) const {
    if (!ranked) return 0;
    if (gradient & kUnprofiledGradient) return -1;  // somebody is waiting for it right now
    auto it = gradients.find(gradient);
    return it == gradients.end() ? static_cast<int32_t>(gradient) : it->second.rank;
  }

  int32_t group_of(uint32_t gradient) const {
    auto it = gradients.find(gradient);
    return it == gradients.end() ? kNoGroup : it->second.group;
  }

  // The group of the gradient that is generated first; kNoGroup where that is not known, or where there is no other.
  int32_t first_group() const {
    double first_s = kNever;
    uint32_t first = 0;
    for (const auto& [gradient, plan] : gradients) {
      if (plan.group == kNoGroup || plan.generation_s < 0) continue;
      // Of one step of the stepwise pattern the last layer comes first.
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

// What get() decided. Without a task, `retry_at` is when asking again may give another answer even
// if nothing else happens (kNever: only an add or a finish can change it).
struct Decision {
  bool start = false;
  Task task;
  double retry_at = kNever;
  bool by_watchdog = false;  // the task had been held with nothing moving
  bool unanswered = false;   // and that for want of credit or a place, which only a finish gives back
  bool frees_push = false;   // of the pull lane: pushes had to let requests go first, and need no longer
};

class ScheduledQueue {
 public:
  explicit ScheduledQueue(double watchdog_s = 1.0, size_t most_in_flight = kUnbounded)
      : watchdog_s_(watchdog_s),
        most_in_flight_(most_in_flight),
        most_ever_(most_in_flight > kUnbounded / 2 ? kUnbounded : most_in_flight + most_in_flight / 2) {
    if (!(watchdog_s >= 0) || most_in_flight == 0) throw std::invalid_argument("a queue that lets nothing go");
  }

  // Returns false, and takes nothing, where the id is already pending or in flight.
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

  // What get() would decide, with all that it does but start the task: a host that asks in vain changes what the
  // watchdog knows, and only that.
  Decision look(double now) {
    release_overdue_groups(now);
    if (ready_.empty()) {
      held_since_ = kNever;
      return Decision{false, Task{}, next_group_check()};
    }
    const Entry& candidate = ready_.front();
    double retry_at = may_start(candidate, now);
    if (retry_at <= now) return Decision{true, candidate.task, now};
    // The watchdog: a ready task that nothing has moved past for `watchdog_s` goes, and is reported.
    if (held_since_ == kNever) held_since_ = now;
    if (in_flight_.tasks >= most_ever_) return Decision{false, Task{}, kNever};
    // The very sum that is given as `retry_at`: a difference may round to just below, and the asking never end.
    double release_at = held_since_ + watchdog_s_;
    if (now >= release_at) return Decision{true, candidate.task, now, true, retry_at == kNever};
    return Decision{false, Task{}, std::min(retry_at, release_at)};
  }

  // When the wire will have taken what was started, as far as the plan can tell.
  double wire_free_at() const { return wire_free_at_; }

  // Returns false where no such task is in flight.
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

  // Swaps the plan whole; null means arrival order without limits. Pending tasks are re-ranked. A plan with
  // groups is taken up when the next iteration begins: in the middle of one, what a group waits for may be gone.
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

  // Forgets every task, pending or in flight, where the engine that had them is gone. The plan stays.
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
  // Of those, what had waited for a finish: others were in flight, and none of them had ended for so long. The rest had
  // waited for what was predicted, a deadline or a group's last member, and did not come.
  uint64_t unanswered_releases() const { return unanswered_releases_; }

 private:
  struct Entry {
    int32_t rank;
    uint64_t sequence;
    Task task;
    double added_s;
  };
  // std heap functions keep the greatest in front: "greater" here means later to go.
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
  // A task may have no bytes, so only the number of tasks says whether there are any.
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

  // An iteration begins where a member of the group that is generated first follows a gradient of another.
  void take_up_at_new_iteration(uint32_t gradient) {
    if (!next_plan_ || next_plan_->gradients.count(gradient) == 0) return;
    if (next_plan_->group_of(gradient) != first_group_) {
      past_first_group_ = true;
    } else if (past_first_group_) {
      take_up(std::exchange(next_plan_, nullptr));
    }
  }

  // Where all bytes of a group are there it may lack a task without bytes, which would wait for the next iteration's.
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

  // A group travels as one: its members become ready together, when all of its bytes are there.
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

  // A member that never comes (a skipped gradient) must not hold the others for ever.
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

  // The latest generation time seen says where in the backward pass the job is, and so when it began.
  void note_generation(uint32_t gradient, double now) {
    if (!plan_ || plan_->deadlines.empty()) return;
    auto it = plan_->gradients.find(gradient);
    if (it == plan_->gradients.end() || it->second.generation_s < 0) return;
    if (it->second.generation_s != progress_s_) {
      progress_s_ = it->second.generation_s;
      backward_began_at_ = now - progress_s_;
    }
  }

  // When the candidate may start: now or earlier for "at once", kNever for "after a finish".
  double may_start(const Entry& candidate, double now) const {
    if (!has_place(candidate)) return kNever;
    if (!plan_) return now;
    if (!fits(candidate)) return kNever;
    double deadline_at = next_deadline(candidate.rank, now);
    if (deadline_at == kNever) return now;
    double finish_at = std::max(now, wire_free_at_) + plan_->overhead_s + candidate.task.bytes / plan_->bandwidth;
    // Constraint 11 of the paper: a transfer ends before a more urgent gradient appears.
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

  // The next one that somebody still waits for: what is later than the slack (a gradient that this iteration skips)
  // holds nothing, and lets nothing past those after it.
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
  const size_t most_ever_;  // with what the watchdog lets go
  std::shared_ptr<const QueuePlan> plan_;
  std::shared_ptr<const QueuePlan> next_plan_;  // one with groups, until the next iteration begins
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

#endif  // PROPHET_NATIVE_QUEUE_H_
