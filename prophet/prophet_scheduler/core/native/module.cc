// Python bindings of the scheduled queue and the simulator: prophet_scheduler.core._native.
//
// Rule of this file: conversion only. Plans arrive as bytes from core/plan_codec.py. simulate/ turns a configuration
// into the simulator's numbers.
#include <malloc.h>
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <chrono>
#include <optional>
#include <stdexcept>
#include <string_view>

#include "calls.h"
#include "events.h"
#include "forks.h"
#include "marks.h"
#include "plan_codec.h"
#include "simulator.h"

namespace py = pybind11;

namespace {

using namespace prophet;

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

// Returns a copy of the records as a structured array.
template <typename Record>
py::array_t<Record> array_of(const std::vector<Record>& records) {
  return py::array_t<Record>(static_cast<py::ssize_t>(records.size()), records.data());
}

void bind_simulator(py::module_& m) {
  PYBIND11_NUMPY_DTYPE(Event, time_s, gradient, bytes, partition, queue, kind, gap);
  PYBIND11_NUMPY_DTYPE(ComputeRecord, started_s, finished_s, worker, iteration, operation, reserved);
  PYBIND11_NUMPY_DTYPE(LinkRecord, started_s, finished_s, worker, bytes, down, reserved);
  PYBIND11_NUMPY_DTYPE(Mark, start_s, backward_s, end_s);

  py::class_<OperationSpec>(m, "OperationSpec")
      .def(py::init(
               [](double seconds, uint32_t inputs, std::vector<uint32_t> successors, std::vector<uint32_t> generates) {
                 return OperationSpec{seconds, inputs, std::move(successors), std::move(generates)};
               }),
           py::arg("seconds"), py::arg("inputs"), py::arg("successors"), py::arg("generates"));
  py::class_<TensorSpec>(m, "TensorSpec")
      .def(py::init([](uint32_t bytes, std::vector<uint32_t> needed_by, std::vector<uint32_t> parts, uint32_t id,
                       std::vector<uint32_t> needed_now) {
             return TensorSpec{bytes, std::move(needed_by), std::move(parts), id, std::move(needed_now)};
           }),
           py::arg("bytes"), py::arg("needed_by"), py::arg("parts") = std::vector<uint32_t>(),
           py::arg("id") = kOwnPlace, py::arg("needed_now") = std::vector<uint32_t>());
  py::enum_<Exchange>(m, "Exchange")
      .value("SYNCHRONOUS", Exchange::kSynchronous)
      .value("ASYNCHRONOUS", Exchange::kAsynchronous)
      .value("COLLECTIVE", Exchange::kCollective);
  py::class_<ClusterSpec>(m, "ClusterSpec")
      .def(py::init<>())
      .def_readwrite("operations", &ClusterSpec::operations)
      .def_readwrite("tensors", &ClusterSpec::tensors)
      .def_readwrite("partition_bytes", &ClusterSpec::partition_bytes)
      .def_readwrite("workers", &ClusterSpec::workers)
      .def_readwrite("servers", &ClusterSpec::servers)
      .def_readwrite("exchange", &ClusterSpec::exchange)
      .def_readwrite("latency_s", &ClusterSpec::latency_s)
      .def_readwrite("server_rate", &ClusterSpec::server_rate)
      .def_readwrite("server_overhead_s", &ClusterSpec::server_overhead_s)
      .def_readwrite("at_once", &ClusterSpec::at_once)
      .def_readwrite("piece_bytes", &ClusterSpec::piece_bytes)
      .def_readwrite("meanwhile", &ClusterSpec::meanwhile)
      .def_readwrite("delay_first", &ClusterSpec::delay_first)
      .def_readwrite("operation_s", &ClusterSpec::operation_s)
      .def_readwrite("operation_rate", &ClusterSpec::operation_rate)
      .def_readwrite("header_bytes", &ClusterSpec::header_bytes)
      .def_readwrite("watchdog_s", &ClusterSpec::watchdog_s)
      .def_readwrite("iterations", &ClusterSpec::iterations)
      .def_readwrite("backward", &ClusterSpec::backward)
      .def_readwrite("ends_at_backward", &ClusterSpec::ends_at_backward);

  py::class_<Simulation>(m, "Simulation")
      .def(py::init<ClusterSpec>(), py::arg("spec"))
      .def("set_link", &Simulation::set_link, py::arg("node"), py::arg("up"), py::arg("down"), py::arg("overhead_s"),
           py::arg("burst_bytes"))
      .def("set_compute_scale", &Simulation::set_compute_scale, py::arg("scale"))
      .def("add_layout", &Simulation::add_layout, py::arg("tensors"), py::arg("generates"))
      .def("use_layout", &Simulation::use_layout, py::arg("number"), py::arg("every"))
      .def("record", &Simulation::record, py::arg("worker"))
      .def(
          "set_plan",
          [](Simulation& simulation, std::optional<std::string_view> plan) {
            return simulation.set_plan(decode_plan_or_none(plan));
          },
          py::arg("plan"), "Bytes of core/plan_codec.py, or None")
      .def("run", &Simulation::run, py::arg("until_s"), py::arg("events"), py::call_guard<py::gil_scoped_release>())
      .def_property_readonly("now", &Simulation::now)
      .def_property_readonly("events", &Simulation::events)
      .def_property_readonly("iterations_done", &Simulation::iterations_done)
      .def_property_readonly("watchdog_releases", &Simulation::watchdog_releases)
      .def_property_readonly(
          "marks",
          [](const Simulation& simulation) {
            return array_of(simulation.marks()).reshape({simulation.spec().workers, simulation.spec().iterations});
          },
          "Marks by worker and iteration")
      .def(
          "take_events",
          [](Simulation& simulation, uint32_t worker) { return array_of(simulation.take_events(worker)); },
          py::arg("worker"), "Events of core/events.py's EVENT_DTYPE")
      .def_property_readonly("computing", [](const Simulation& simulation) { return array_of(simulation.computing()); })
      .def_property_readonly("links", [](const Simulation& simulation) { return array_of(simulation.links()); });
}

}  // namespace

PYBIND11_MODULE(_native, m) {
  m.doc() = "The scheduled queue and the simulator, pure state machines; see core/native/.";
  mend_forks();

  py::class_<TwoLaneQueue>(m, "TwoLaneQueue")
      .def(py::init<double, size_t>(), py::arg("watchdog_s") = 1.0, py::arg("most_in_flight") = kUnbounded)
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
          [](TwoLaneQueue& queue, std::optional<std::string_view> plan) { queue.set_plan(decode_plan_or_none(plan)); },
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
  m.attr("UNBOUNDED") = kUnbounded;
  m.attr("EVENT_VERSION") = kEventVersion;
  m.attr("NO_REQUEST") = TwoLaneQueue::kNoRequest;
  m.attr("NO_PLAN") = kNoPlan;
  m.attr("PLAN_VERSION") = kPlanVersion;

  bind_calls(m);
  bind_marks(m);
  bind_simulator(m);
}
