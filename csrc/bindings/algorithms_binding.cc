#include "bindings/bindings.h"

#include <pybind11/stl.h>

#include <regex>
#include <string>

#include "base/str_cat.h"
#include "schedule/algorithms.h"
#include "schedule/op_shape.h"
#include "schedule/planner.h"

namespace py = pybind11;

namespace dmlcomm::bindings {

namespace {

// What DMLCOMM_ALGORITHM may name beside the algorithms of the table, for all_reduce. The process
// group sends that through the servers, and the engine never hears of it.
constexpr char kParameterServers[] = "ps";
constexpr char kParameterServersItem[] = "all_reduce=ps";

// Every operation that has algorithms, with the names that DMLCOMM_ALGORITHM takes: those of the
// table in its order, and the parameter servers.
py::dict algorithms() {
  py::dict names;
  for (const auto& algorithm : schedule::all_algorithms()) {
    auto of_kind = schedule::algorithms_of(algorithm.kind);
    if (algorithm.kind == schedule::OpKind::all_reduce) of_kind.emplace_back(kParameterServers);
    names[schedule::to_string(algorithm.kind)] = of_kind;
  }
  return names;
}

// The rest of the setting, for the engine.
std::string without_parameter_servers(const std::string& text) {
  if (text == kParameterServers) return "";
  static const std::regex item(str_cat("(^|,)", kParameterServersItem, "(?=,|$)"));
  const std::string rest = std::regex_replace(text, item, "");
  return rest != text && rest.starts_with(',') ? rest.substr(1) : rest;
}

// Raises ValueError unless some communicator would accept `text` as DMLCOMM_ALGORITHM.
void check_algorithm(const std::string& text) {
  const auto overrides = schedule::parse_overrides(without_parameter_servers(text));
  if (overrides.ok()) return;
  throw py::value_error(str_cat(overrides.status().message(), "; and ", kParameterServersItem,
                                ", through the parameter servers"));
}

}  // namespace

void bind_algorithms(py::module_& module) {
  module.def("algorithms", &algorithms, "Operation -> names of its algorithms.");
  module.def("check_algorithm", &check_algorithm, py::arg("text"),
             "Raises ValueError unless `text` is a legal DMLCOMM_ALGORITHM.");
  module.def("without_parameter_servers", &without_parameter_servers, py::arg("text"),
             "DMLCOMM_ALGORITHM without the word that sends all_reduce through the parameter "
             "servers; `text` itself where it does not have it.");
}

}  // namespace dmlcomm::bindings
