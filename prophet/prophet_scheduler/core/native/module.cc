// Python bindings of the scheduled queue, in prophet_scheduler.core._native.
//
// Rule of this file: conversion only. Plans arrive as bytes from core/plan_codec.py.
#include <malloc.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <chrono>
#include <optional>
#include <stdexcept>
#include <string_view>

#include "calls.h"
#include "events.h"
#include "forks.h"
#include "plan_codec.h"
#include "simulator_module.h"

namespace py = pybind11;

namespace {

using prophet::Decision;
using prophet::QueueKind;
using prophet::QueuePlan;
using prophet::Task;
using prophet::TwoLaneQueue;

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

QueueKind lane(int kind) {
  if (kind != 0 && kind != 1) throw std::invalid_argument("a lane is 0 (push) or 1 (pull)");
  return static_cast<QueueKind>(kind);
}

std::pair<std::optional<uint64_t>, double> answer(const Decision& decision) {
  if (!decision.start) return {std::nullopt, decision.retry_at};
  return {decision.task.id, decision.retry_at};
}

// Measures get+finish with `pending` tasks waiting. Returns (operations per second, seconds of each get).
std::pair<double, std::vector<double>> measure(size_t pending, size_t operations) {
  TwoLaneQueue queue;
  auto plan = std::make_shared<QueuePlan>();
  plan->ranked = true;
  plan->credit = 4 << 20;
  queue.set_plan({plan, plan});
  uint64_t next = 0;
  // A multiplicative hash scatters the gradients, so that the heap gets no sorted input.
  auto add = [&](double now) {
    uint32_t gradient = static_cast<uint32_t>((next * 2654435761u) % 1000);
    queue.add(QueueKind::kPush, Task{next++, gradient, 65536}, now);
  };
  for (size_t i = 0; i < pending; ++i) add(0.0);
  double busy = 0;
  for (size_t i = 0; i < operations; ++i) {
    double before = seconds_now();
    Decision decision = queue.get(QueueKind::kPush, 0.0);
    queue.finish(QueueKind::kPush, decision.task.id, 0.0);
    busy += seconds_now() - before;
    add(0.0);
  }
  std::vector<double> gets(operations);
  for (size_t i = 0; i < operations; ++i) {
    double before = seconds_now();
    Decision decision = queue.get(QueueKind::kPush, 0.0);
    gets[i] = seconds_now() - before;
    queue.finish(QueueKind::kPush, decision.task.id, 0.0);
    add(0.0);
  }
  return {operations / busy, gets};
}

// Returns the heap bytes per task with `pending` tasks waiting, according to the allocator.
double bytes_per_pending(size_t pending) {
  size_t before = mallinfo2().uordblks;
  TwoLaneQueue queue;
  for (size_t i = 0; i < pending; ++i)
    queue.add(QueueKind::kPush, Task{i, static_cast<uint32_t>(i % 1000), 65536}, 0.0);
  return static_cast<double>(mallinfo2().uordblks - before) / pending;
}

}  // namespace

PYBIND11_MODULE(_native, m) {
  m.doc() = "The scheduled queue and the simulator, pure state machines; see core/native/.";
  prophet::mend_forks();

  py::class_<TwoLaneQueue>(m, "TwoLaneQueue")
      .def(py::init<double, size_t>(), py::arg("watchdog_s") = 1.0, py::arg("most_in_flight") = prophet::kUnbounded)
      .def(
          "add",
          [](TwoLaneQueue& queue, int kind, uint64_t id, uint32_t gradient, uint32_t bytes, double now) {
            return queue.add(lane(kind), Task{id, gradient, bytes}, now);
          },
          py::arg("kind"), py::arg("id"), py::arg("gradient"), py::arg("bytes"), py::arg("now"))
      .def(
          "get", [](TwoLaneQueue& queue, int kind, double now) { return answer(queue.get(lane(kind), now)); },
          py::arg("kind"), py::arg("now"), "Start a task. Return (its id or None, time to ask again)")
      .def(
          "look", [](TwoLaneQueue& queue, int kind, double now) { return answer(queue.look(lane(kind), now)); },
          py::arg("kind"), py::arg("now"), "Return what get would, without starting the task")
      .def(
          "finish",
          [](TwoLaneQueue& queue, int kind, uint64_t id, double now) { return queue.finish(lane(kind), id, now); },
          py::arg("kind"), py::arg("id"), py::arg("now"))
      .def("clear", &TwoLaneQueue::clear)
      .def(
          "set_plan",
          [](TwoLaneQueue& queue, std::optional<std::string_view> plan) {
            queue.set_plan(prophet::decode_plan_or_none(plan));
          },
          py::arg("plan"), "Bytes of core/plan_codec.py, or None")
      .def(
          "pending", [](const TwoLaneQueue& queue, int kind) { return queue.lane(lane(kind)).pending(); },
          py::arg("kind"))
      .def(
          "in_flight", [](const TwoLaneQueue& queue, int kind) { return queue.lane(lane(kind)).in_flight(); },
          py::arg("kind"))
      .def(
          "in_flight_bytes",
          [](const TwoLaneQueue& queue, int kind) { return queue.lane(lane(kind)).in_flight_bytes(); }, py::arg("kind"))
      .def_property("requests_first_until", &TwoLaneQueue::requests_first_until,
                    &TwoLaneQueue::set_requests_first_until)
      .def_property_readonly("empty", &TwoLaneQueue::empty)
      .def_property_readonly("watchdog_releases", &TwoLaneQueue::watchdog_releases)
      .def_property_readonly("unanswered_releases", &TwoLaneQueue::unanswered_releases);

  m.def("measure", &measure, py::arg("pending"), py::arg("operations"));
  m.def("bytes_per_pending", &bytes_per_pending, py::arg("pending"));
  m.attr("UNBOUNDED") = prophet::kUnbounded;
  m.attr("EVENT_VERSION") = prophet::kEventVersion;
  m.attr("NO_REQUEST") = TwoLaneQueue::kNoRequest;
  m.attr("NO_PLAN") = prophet::kNoPlan;
  m.attr("PLAN_VERSION") = prophet::kPlanVersion;

  prophet::bind_calls(m);
  prophet::bind_simulator(m);
}
