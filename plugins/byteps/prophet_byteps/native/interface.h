// What the hook says to Python: structures that plugins/byteps/prophet_byteps/hook.py has the same of.
//
// Rule of this file: plain data.
#ifndef PROPHET_PLUGINS_BYTEPS_NATIVE_INTERFACE_H_
#define PROPHET_PLUGINS_BYTEPS_NATIVE_INTERFACE_H_

#include <cstdint>

extern "C" {

// Of each lane (PUSH, PULL): what waits, what is in flight, and of that the longest: its gradient, and since when.
struct prophet_lane_status {
  uint64_t waiting, in_flight;
  double oldest_s;  // seconds in flight; negative where nothing is
  uint32_t oldest_gradient;
  uint32_t reserved;
};

struct prophet_status {
  uint64_t tasks, in_flight_bytes, watchdog_releases, unanswered_releases, events_dropped;
  double still_s;  // since something last came, left or was answered; negative before the first
  prophet_lane_status lanes[2];
  int32_t active;
  char why_aside[160];
};

// What Python must have alike; asked before anything else.
struct prophet_layouts {
  uint32_t event_version, event_bytes, plan_version, most_in_flight;
};

}  // extern "C"

#endif  // PROPHET_PLUGINS_BYTEPS_NATIVE_INTERFACE_H_
