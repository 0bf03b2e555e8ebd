#include "bindings/algorithms_binding.h"

#include <pybind11/stl.h>

#include <string>

#include "schedule/algorithms.h"
#include "schedule/op_shape.h"
#include "schedule/planner.h"

namespace py = pybind11;

namespace dmlcomm::bindings {

namespace {

// Every operation that has algorithms, with the names that DMLCOMM_ALGORITHM takes: those of the
// table in its order, and the parameter servers.
py::dict algorithms() {
  py::dict names;
  for (const auto& algorithm : schedule::all_algorithms()) {
    auto of_kind = schedule::algorithms_of(algorithm.kind);
    if (algorithm.kind == schedule::OpKind::all_reduce) {
      of_kind.emplace_back(schedule::kParameterServers);
    }
    names[schedule::to_string(algorithm.kind)] = of_kind;
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
  module.def("names_parameter_servers", &schedule::names_parameter_servers, py::arg("text"),
             "Whether DMLCOMM_ALGORITHM sends all_reduce through the parameter servers.");
}

}  // namespace dmlcomm::bindings
