// The lock of Python's interpreter, where it is not known whether the thread holds it.
#pragma once

#include <Python.h>
#include <pybind11/pybind11.h>

#include <optional>

namespace dmlcomm::adaptor {

// While it lives the thread does not hold the lock: others may need it to do what this one waits
// for.
class GilReleasedIfHeld {
 public:
  GilReleasedIfHeld() {
    if (Py_IsInitialized() && PyGILState_Check()) release_.emplace();
  }

 private:
  std::optional<pybind11::gil_scoped_release> release_;
};

}  // namespace dmlcomm::adaptor
