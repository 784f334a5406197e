// How long bytes take on a link of the simulated cluster.
//
// Rule of this file: a rate over time, and one direction of a node's link. Times are seconds of the virtual clock.
#ifndef PROPHET_NATIVE_LINK_H_
#define PROPHET_NATIVE_LINK_H_

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

namespace prophet {

// Bytes per second over time: a step function that begins at 0. No steps: a link without a limit.
class Rate {
 public:
  Rate() = default;
  explicit Rate(std::vector<std::pair<double, double>> steps) : steps_(std::move(steps)) {}

  bool limited() const { return !steps_.empty(); }

  // When `bytes` that start at `start` are through.
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

  // Seconds for `bytes` at the rate of `now`.
  double seconds(double now, double bytes) const {
    if (!limited()) return 0;
    size_t at = 0;
    while (at + 1 < steps_.size() && steps_[at + 1].first <= now) ++at;
    return bytes / steps_[at].second;
  }

 private:
  std::vector<std::pair<double, double>> steps_;  // (from when, bytes per second), by time
};

// One direction of a node's connection: a token bucket. A message with data costs `overhead_s` beside its bytes. With
// `burst_bytes` of 0 it is a wire; with more, what an idle moment leaves unused may be caught up with later, as where a
// kernel or a cloud shapes the link.
struct Link {
  Rate rate;
  double overhead_s = 0;
  double burst_bytes = 0;
  double free_at = 0;    // when the last message is through
  double filled_at = 0;  // when the bucket would be full but for the messages so far, less the time that filling takes

  // Takes the link for a message that is there at `now`; returns (start, end).
  std::pair<double, double> take(double now, double bytes, bool data) {
    double start = std::max(now, free_at);
    double from = std::max(filled_at, start - rate.seconds(start, burst_bytes));
    filled_at = rate.after(from + (data ? overhead_s : 0), bytes);
    free_at = std::max(start, filled_at);
    return {start, free_at};
  }
};

}  // namespace prophet

#endif  // PROPHET_NATIVE_LINK_H_
