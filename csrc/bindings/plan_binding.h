// Topology, compare(), verify() and check_plan(): the core for `dmlcomm plan`.
#pragma once

#include <pybind11/pybind11.h>

namespace dmlcomm::bindings {

void bind_plan(pybind11::module_& module);

}  // namespace dmlcomm::bindings
