// One taken-over queue, PUSH or PULL: the BytePS entries behind the task ids of our queue's lane.
//
// Rule of this file: which entries are waiting, in flight or not ready, and since when. Time is passed in, and the
// caller locks. Nothing here calls BytePS. Forgotten entries are returned, so that the caller can drop them without the
// lock: dropping the last reference to a tensor may wait for Python's interpreter lock.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "events.h"
#include "originals.h"
#include "two_lane_queue.h"

namespace prophet {

class Lane {
 public:
  Lane(QueueKind kind, TwoLaneQueue& queue) : kind(kind), queue_(queue) {}

  const QueueKind kind;
  uint32_t left_in_original = 0;  // chosen, but BytePS's own queue found them not ready

  bool has_waiting() const { return !pending_.empty() || polls(); }
  size_t waiting() const { return pending_.size() + not_ready_.size(); }
  bool polls() const { return !not_ready_.empty() || left_in_original > 0; }

  // Hold a task until the other GPUs of the machine have added to its data.
  void hold(const Entry& entry) { not_ready_.push_back(entry); }

  void schedule(const Entry& entry, uint32_t gradient, uint32_t bytes, double now) {
    uint64_t id = next_id_++;
    known_[entry.get()] = Known{id, gradient, kNever};
    queue_.add(kind, Task{id, gradient, bytes}, now);
    pending_.emplace(id, entry);
  }

  // Check up to `most` held tasks, the least recently checked first. Pass each that is `ready` to `came`.
  template <typename Ready, typename Came>
  void look_at_held(size_t most, Ready ready, Came came) {
    for (size_t left = std::min(not_ready_.size(), most); left > 0; --left) {
      Entry entry = std::move(not_ready_.front());
      not_ready_.pop_front();
      if (ready(entry)) {
        came(entry);
      } else {
        not_ready_.push_back(std::move(entry));
      }
    }
  }

  // Return the entry of a task that the queue has just started.
  Entry started(const Task& task, double now) {
    auto it = pending_.find(task.id);
    Entry entry = std::move(it->second);
    pending_.erase(it);
    known_[entry.get()].started_s = now;
    return entry;
  }

  // Finish the entry's task. Return false if it was never taken over, or belongs to a BytePS that was shut down.
  bool finish(TensorTableEntry* entry, double now) {
    auto it = known_.find(entry);
    if (it == known_.end() || !queue_.finish(kind, it->second.id, now)) return false;
    known_.erase(it);
    return true;
  }

  // Forget all waiting and in-flight entries. Return those that wait for the queue in order of arrival, then those that
  // are held. The owner of both lanes must also clear the queue.
  std::vector<Entry> forget() {
    std::vector<Entry> entries;
    for (auto& [id, entry] : pending_) entries.push_back(std::move(entry));
    entries.insert(entries.end(), not_ready_.begin(), not_ready_.end());
    pending_.clear();
    not_ready_.clear();
    known_.clear();
    left_in_original = 0;
    return entries;
  }

  struct Oldest {
    uint32_t gradient;
    double started_s;
  };

  // Return the task that has been in flight longest.
  std::optional<Oldest> oldest_in_flight() const {
    std::optional<Oldest> oldest;
    for (const auto& [entry, known] : known_) {
      if (known.started_s < (oldest ? oldest->started_s : kNever)) oldest = Oldest{known.gradient, known.started_s};
    }
    return oldest;
  }

 private:
  struct Known {
    uint64_t id = 0;
    uint32_t gradient = 0;
    double started_s = kNever;  // kNever until it is in flight
  };

  TwoLaneQueue& queue_;
  std::map<uint64_t, Entry> pending_;                   // by task id
  std::unordered_map<TensorTableEntry*, Known> known_;  // pending or in flight
  std::deque<Entry> not_ready_;                         // held
  uint64_t next_id_ = 0;
};

}  // namespace prophet
