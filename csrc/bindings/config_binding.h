// config() and config_defaults(): the process's Config, for Python.
#pragma once

#include <pybind11/pybind11.h>

namespace dmlcomm::bindings {

void bind_config(pybind11::module_& module);

}  // namespace dmlcomm::bindings
