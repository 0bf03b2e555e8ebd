// The parameter server for Python: plain data in and out, memory by address.
#pragma once

#include <pybind11/pybind11.h>

namespace dmlcomm::bindings {

void bind_parameter_server(pybind11::module_& module);

}  // namespace dmlcomm::bindings
