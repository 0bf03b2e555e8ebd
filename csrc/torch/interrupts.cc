#include "torch/interrupts.h"

#include <pybind11/pybind11.h>

namespace py = pybind11;

namespace dmlcomm::adaptor {
namespace {

unsigned long& main_thread() {
  static unsigned long id = 0;
  return id;
}

}  // namespace

void remember_main_thread() {
  auto thread = py::module_::import("threading").attr("main_thread")();
  main_thread() = thread.attr("ident").cast<unsigned long>();
}

void check_interrupts() {
  if (PyThread_get_thread_ident() != main_thread() || !Py_IsInitialized()) return;
  py::gil_scoped_acquire gil;
  if (PyErr_CheckSignals() != 0) throw py::error_already_set();
}

}  // namespace dmlcomm::adaptor
