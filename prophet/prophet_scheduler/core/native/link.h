// Links of the simulated cluster.
//
// Rule of this file: a rate over time, and one direction of a node's link. Times are seconds of the virtual clock.
#pragma once

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

namespace prophet {

// Bytes per second over time: a step function that begins at time 0. Without steps, there is no limit.
class Rate {
 public:
  Rate() = default;
  explicit Rate(std::vector<std::pair<double, double>> steps) : steps_(std::move(steps)) {}

  bool limited() const { return !steps_.empty(); }

  // Returns when `bytes` that start at `start` have passed.
  double after(double start, double bytes) const {
    if (!limited()) return start;
    size_t at = 0;
    while (at + 1 < steps_.size() && steps_[at + 1].first <= start) ++at;
    for (;; ++at) {
      double end = start + bytes / steps_[at].second;
      if (at + 1 == steps_.size() || end <= steps_[at + 1].first) return end;
      bytes -= (steps_[at + 1].first - start) * steps_[at].second;
      start = steps_[at + 1].first;
    }
  }

  // Returns the seconds for `bytes` at the rate at time `now`.
  double seconds(double now, double bytes) const {
    if (!limited()) return 0;
    size_t at = 0;
    while (at + 1 < steps_.size() && steps_[at + 1].first <= now) ++at;
    return bytes / steps_[at].second;
  }

 private:
  std::vector<std::pair<double, double>> steps_;  // (start time, bytes per second), by time
};

// One direction of a node's link: a token bucket. A message with data costs `overhead_s` in addition to its bytes. With
// `burst_bytes` of 0 it is a plain wire. With more, bytes unused while idle may be sent in a burst later, as on a link
// shaped by a kernel or a cloud.
struct Link {
  Rate rate;
  double overhead_s = 0;
  double burst_bytes = 0;
  double free_at = 0;    // when the last message has passed
  double filled_at = 0;  // when the bucket will be full again after the messages so far, minus the time to fill it

  // Occupies the link for a message that is ready at `now`. Returns (start, end).
  std::pair<double, double> take(double now, double bytes, bool data) {
    double start = std::max(now, free_at);
    double from = std::max(filled_at, start - rate.seconds(start, burst_bytes));
    filled_at = rate.after(from + (data ? overhead_s : 0), bytes);
    free_at = std::max(start, filled_at);
    return {start, free_at};
  }
};

}  // namespace prophet
