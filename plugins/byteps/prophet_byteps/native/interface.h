// Structures for Python. plugins/byteps/prophet_byteps/hook.py must have the same.
//
// Rule of this file: plain data.
#ifndef PROPHET_PLUGINS_BYTEPS_NATIVE_INTERFACE_H_
#define PROPHET_PLUGINS_BYTEPS_NATIVE_INTERFACE_H_

#include <cstdint>

extern "C" {

// One lane (PUSH, PULL): tasks waiting and in flight, and the gradient and age of the oldest in flight.
struct prophet_lane_status {
  uint64_t waiting, in_flight;
  double oldest_s;  // seconds in flight; negative without one
  uint32_t oldest_gradient;
  uint32_t reserved;
};

struct prophet_status {
  uint64_t tasks, in_flight_bytes, watchdog_releases, unanswered_releases, events_dropped;
  double still_s;  // since a task last came, left or was answered; negative before the first
  prophet_lane_status lanes[2];
  int32_t active;
  char why_aside[160];
};

// Layouts that Python must share. It asks before anything else.
struct prophet_layouts {
  uint32_t event_version, event_bytes, plan_version, most_in_flight;
};

}  // extern "C"

#endif  // PROPHET_PLUGINS_BYTEPS_NATIVE_INTERFACE_H_
