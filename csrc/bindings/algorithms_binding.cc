#include "bindings/algorithms_binding.h"

#include <pybind11/stl.h>

#include <string>

#include "schedule/algorithms.h"
#include "schedule/op_shape.h"
#include "schedule/planner.h"

namespace py = pybind11;

namespace dmlcomm::bindings {

namespace {

// Every operation that has algorithms, with their names in the order of the table.
py::dict algorithms() {
  py::dict names;
  for (const auto& algorithm : schedule::all_algorithms()) {
    names[schedule::to_string(algorithm.kind)] = schedule::algorithms_of(algorithm.kind);
  }
  return names;
}

// Raises ValueError unless some communicator would accept `text` as DMLCOMM_ALGORITHM.
void check_algorithm(const std::string& text) {
  const auto overrides = schedule::parse_overrides(text);
  if (!overrides.ok()) throw py::value_error(overrides.status().message());
}

}  // namespace

void bind_algorithms(py::module_& module) {
  module.def("algorithms", &algorithms, "Operation -> names of its algorithms.");
  module.def("check_algorithm", &check_algorithm, py::arg("text"),
             "Raises ValueError unless `text` is a legal DMLCOMM_ALGORITHM.");
}

}  // namespace dmlcomm::bindings
