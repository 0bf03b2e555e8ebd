// algorithms() and check_algorithm(): what DMLCOMM_ALGORITHM may say, for Python.
#pragma once

#include <pybind11/pybind11.h>

namespace dmlcomm::bindings {

void bind_algorithms(pybind11::module_& module);

}  // namespace dmlcomm::bindings
