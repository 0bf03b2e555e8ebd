// algorithms() and check_algorithm(): the legal values of DMLCOMM_ALGORITHM, for Python.
#pragma once

#include <pybind11/pybind11.h>

namespace dmlcomm::bindings {

void bind_algorithms(pybind11::module_& module);

}  // namespace dmlcomm::bindings
