#include <pybind11/functional.h>
#include <pybind11/stl.h>

#include <functional>
#include <utility>
#include <vector>

#include "bindings/bindings.h"
#include "sim/max_min_rates.h"
#include "sim/simulation.h"

namespace py = pybind11;

namespace dmlcomm::bindings {

namespace {

using sim::Outcome;
using sim::Simulation;
using sim::TaskId;

template <typename T>
T value_of(Result<T> result) {
  if (!result.ok()) throw py::value_error(result.status().message());
  return std::move(*result);
}

std::vector<double> max_min_rates(const std::vector<std::vector<int64_t>>& paths,
                                  const std::vector<double>& capacities,
                                  const std::vector<double>& weights,
                                  const std::vector<int64_t>& priorities) {
  const py::gil_scoped_release release;
  return value_of(sim::max_min_rates(paths, capacities, weights, priorities));
}

TaskId add_flow(Simulation& simulation, std::vector<int64_t> path, double bytes, double start_s,
                std::vector<TaskId> after, double weight, int64_t priority, int64_t lane) {
  return value_of(simulation.add_flow(
      {std::move(path), bytes, start_s, std::move(after), weight, priority, lane}));
}

TaskId add_compute(Simulation& simulation, double seconds, double start_s,
                   std::vector<TaskId> after, int64_t lane) {
  return value_of(simulation.add_compute({seconds, start_s, std::move(after), lane}));
}

void change_capacity(Simulation& simulation, int64_t link, double time_s, double capacity,
                     double dark_s) {
  const Status status = simulation.change_capacity(link, time_s, capacity, dark_s);
  if (!status.ok()) throw py::value_error(status.message());
}

void change_path(Simulation& simulation, const std::vector<int64_t>& path, double time_s,
                 const std::vector<int64_t>& other) {
  const Status status = simulation.change_path(path, time_s, other);
  if (!status.ok()) throw py::value_error(status.message());
}

// Signals, as an interrupt, and errors of the callback end the run.
Outcome run(const Simulation& simulation, const std::function<void(size_t)>& progress,
            double resolution_s) {
  const py::gil_scoped_release release;
  auto outcome = simulation.run(
      [&](size_t num_ended) {
        const py::gil_scoped_acquire acquire;
        if (PyErr_CheckSignals() != 0) throw py::error_already_set();
        if (progress) progress(num_ended);
        return true;
      },
      resolution_s);
  return value_of(std::move(outcome));
}

}  // namespace

void bind_sim(py::module_& module) {
  module.def("max_min_rates", &max_min_rates, py::arg("paths"), py::arg("capacities"),
             py::arg("weights"), py::arg("priorities"),
             "Rates of flows in the unit of the capacities; empty weights are 1, empty priorities "
             "0. Raises ValueError.");
  py::class_<Outcome>(module, "SimOutcome", "When tasks began and ended, and what links carried.")
      .def_readonly("makespan_s", &Outcome::makespan_s)
      .def_readonly("starts_s", &Outcome::starts_s, "By task.")
      .def_readonly("ends_s", &Outcome::ends_s, "By task.")
      .def_readonly("link_bytes", &Outcome::link_bytes, "By link.");
  py::class_<Simulation>(module, "Simulation", "Flows and computations, in bits/s and seconds.")
      .def(py::init([](std::vector<double> capacities, std::vector<double> latencies_s) {
             return value_of(Simulation::make(std::move(capacities), std::move(latencies_s)));
           }),
           py::arg("capacities"), py::arg("latencies_s"), "No latencies are 0. Raises ValueError.")
      .def_property_readonly("num_tasks", &Simulation::num_tasks)
      .def("add_flow", &add_flow, py::arg("path"), py::arg("num_bytes"), py::arg("start_s"),
           py::arg("after"), py::arg("weight"), py::arg("priority"), py::arg("lane"),
           "A lane of -1 is none. Returns the number of the task. Raises ValueError.")
      .def("add_compute", &add_compute, py::arg("seconds"), py::arg("start_s"), py::arg("after"),
           py::arg("lane"),
           "A lane of -1 is none. Returns the number of the task. Raises ValueError.")
      .def("change_capacity", &change_capacity, py::arg("link"), py::arg("time_s"),
           py::arg("capacity"), py::arg("dark_s"), "Raises ValueError.")
      .def("change_path", &change_path, py::arg("path"), py::arg("time_s"), py::arg("other"),
           "Raises ValueError.")
      .def("run", &run, py::arg("progress"), py::arg("resolution_s"),
           "Plays everything. `progress` is called now and then with the number of tasks that have "
           "ended, unless it is None. Raises ValueError for tasks that never end.");
}

}  // namespace dmlcomm::bindings
