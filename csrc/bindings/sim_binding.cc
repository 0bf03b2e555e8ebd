#include <pybind11/stl.h>

#include <utility>
#include <vector>

#include "bindings/bindings.h"
#include "sim/max_min_rates.h"

namespace py = pybind11;

namespace dmlcomm::bindings {

namespace {

std::vector<double> max_min_rates(const std::vector<std::vector<int64_t>>& paths,
                                  const std::vector<double>& capacities,
                                  const std::vector<double>& weights,
                                  const std::vector<int64_t>& priorities) {
  const py::gil_scoped_release release;
  auto rates = sim::max_min_rates(paths, capacities, weights, priorities);
  if (!rates.ok()) throw py::value_error(rates.status().message());
  return std::move(*rates);
}

}  // namespace

void bind_sim(py::module_& module) {
  module.def("max_min_rates", &max_min_rates, py::arg("paths"), py::arg("capacities"),
             py::arg("weights"), py::arg("priorities"),
             "Rates of flows in the unit of the capacities; empty weights are 1, empty priorities "
             "0. Raises ValueError.");
}

}  // namespace dmlcomm::bindings
