// Python's door to the native part, prophet.core._native: here to the scheduled queue.
//
// Rule of this file: conversion only. The Plan of prophet/model.py is taken apart in prophet/core/queue.py.
#include <malloc.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <chrono>
#include <optional>
#include <tuple>

#include "queue.h"
#include "simulator_module.h"

namespace py = pybind11;

namespace {

using prophet::Decision;
using prophet::QueuePlan;
using prophet::ScheduledQueue;
using prophet::Task;

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Times get+finish with `pending` tasks waiting: (operations per second, seconds of each get).
std::pair<double, std::vector<double>> measure(size_t pending, size_t operations) {
  ScheduledQueue queue;
  auto plan = std::make_shared<QueuePlan>();
  plan->ranked = true;
  plan->credit = 4 << 20;
  queue.set_plan(plan);
  uint64_t next = 0;
  // A multiplicative hash spreads the gradients, so that the heap sees no sorted input.
  auto add = [&](double now) {
    uint32_t gradient = static_cast<uint32_t>((next * 2654435761u) % 1000);
    queue.add(Task{next++, gradient, 65536}, now);
  };
  for (size_t i = 0; i < pending; ++i) add(0.0);
  double busy = 0;
  for (size_t i = 0; i < operations; ++i) {
    double before = seconds_now();
    Decision decision = queue.get(0.0);
    queue.finish(decision.task.id, 0.0);
    busy += seconds_now() - before;
    add(0.0);
  }
  std::vector<double> gets(operations);
  for (size_t i = 0; i < operations; ++i) {
    double before = seconds_now();
    Decision decision = queue.get(0.0);
    gets[i] = seconds_now() - before;
    queue.finish(decision.task.id, 0.0);
    add(0.0);
  }
  return {operations / busy, gets};
}

// Heap bytes that each of `pending` waiting tasks takes, by the allocator's own count.
double bytes_per_pending(size_t pending) {
  size_t before = mallinfo2().uordblks;
  ScheduledQueue queue;
  for (size_t i = 0; i < pending; ++i) queue.add(Task{i, static_cast<uint32_t>(i % 1000), 65536}, 0.0);
  return static_cast<double>(mallinfo2().uordblks - before) / pending;
}

}  // namespace

PYBIND11_MODULE(_native, m) {
  m.doc() = "The scheduled queue and the simulator, pure state machines; see prophet/core/native/.";

  py::class_<prophet::GradientPlan>(m, "GradientPlan")
      .def(py::init([](int32_t rank, int32_t group, double generation_s) {
             return prophet::GradientPlan{rank, group, generation_s};
           }),
           py::arg("rank"), py::arg("group"), py::arg("generation_s"));
  py::class_<prophet::Deadline>(m, "Deadline")
      .def(py::init([](double time_s, int32_t rank) { return prophet::Deadline{time_s, rank}; }), py::arg("time_s"),
           py::arg("rank"));
  py::class_<QueuePlan, std::shared_ptr<QueuePlan>>(m, "QueuePlan")
      .def(py::init<>())
      .def_readwrite("ranked", &QueuePlan::ranked)
      .def_readwrite("credit_counts_only_urgent", &QueuePlan::credit_counts_only_urgent)
      .def_readwrite("credit", &QueuePlan::credit)
      .def_readwrite("deadlines", &QueuePlan::deadlines)
      .def_readwrite("group_bytes", &QueuePlan::group_bytes)
      .def_readwrite("gradients", &QueuePlan::gradients)
      .def_readwrite("bandwidth", &QueuePlan::bandwidth)
      .def_readwrite("overhead_s", &QueuePlan::overhead_s)
      .def_readwrite("deadline_slack_s", &QueuePlan::deadline_slack_s);

  py::class_<ScheduledQueue>(m, "ScheduledQueue")
      .def(py::init<double, size_t>(), py::arg("watchdog_s") = 1.0, py::arg("most_in_flight") = prophet::kUnbounded)
      .def(
          "add",
          [](ScheduledQueue& queue, uint64_t id, uint32_t gradient, uint32_t bytes, double now) {
            return queue.add(Task{id, gradient, bytes}, now);
          },
          py::arg("id"), py::arg("gradient"), py::arg("bytes"), py::arg("now"))
      .def(
          "get",
          [](ScheduledQueue& queue, double now) -> std::pair<std::optional<uint64_t>, double> {
            Decision decision = queue.get(now);
            if (!decision.start) return {std::nullopt, decision.retry_at};
            return {decision.task.id, decision.retry_at};
          },
          py::arg("now"), "(id of the task to start, or None; when to ask again)")
      .def("requests_first_until", &ScheduledQueue::requests_first_until, py::arg("now"))
      .def("finish", &ScheduledQueue::finish, py::arg("id"), py::arg("now"))
      .def("clear", &ScheduledQueue::clear)
      .def(
          "set_plan", [](ScheduledQueue& queue, std::shared_ptr<QueuePlan> plan) { queue.set_plan(plan); },
          py::arg("plan"))
      .def_property_readonly("pending", &ScheduledQueue::pending)
      .def_property_readonly("in_flight", &ScheduledQueue::in_flight)
      .def_property_readonly("in_flight_bytes", &ScheduledQueue::in_flight_bytes)
      .def_property_readonly("watchdog_releases", &ScheduledQueue::watchdog_releases);

  m.def("measure", &measure, py::arg("pending"), py::arg("operations"));
  m.def("bytes_per_pending", &bytes_per_pending, py::arg("pending"));
  m.attr("UNLIMITED") = prophet::kUnlimited;
  m.attr("UNBOUNDED") = prophet::kUnbounded;
  m.attr("NO_GROUP") = prophet::kNoGroup;

  prophet::bind_simulator(m);
}
