// Python bindings of the simulator, in prophet_scheduler.core._native.
//
// Rule of this file: conversion only. simulate/ turns a configuration into numbers.
#include "simulator_module.h"

#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <optional>
#include <string_view>

#include "plan_codec.h"
#include "simulator.h"

namespace py = pybind11;

namespace prophet {

namespace {

// Returns a copy of the records as a structured array.
template <typename Record>
py::array_t<Record> array_of(const std::vector<Record>& records) {
  return py::array_t<Record>(static_cast<py::ssize_t>(records.size()), records.data());
}

}  // namespace

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

}  // namespace prophet
