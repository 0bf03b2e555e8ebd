#include "torch/errors.h"

#include <pybind11/pybind11.h>

#include <map>

namespace py = pybind11;

namespace dmlcomm::adaptor {
namespace {

// Python classes by cause; CommError, under `ok`, is that of all others. Never released: exceptions
// may be translated until the process ends.
std::map<StatusCode, PyObject*>& error_classes() {
  static auto* const classes = new std::map<StatusCode, PyObject*>;
  return *classes;
}

void translate(std::exception_ptr error) {
  try {
    if (error) std::rethrow_exception(error);
  } catch (CommException& e) {
    ::PyErr_SetString(e.python_type(), e.what());
  }
}

unsigned long& main_thread() {
  static unsigned long id = 0;
  return id;
}

}  // namespace

CommException::CommException(const Status& status)
    : PyTorchError(status.to_string()), status_(status) {}

PyObject* CommException::python_type() {
  const auto found = error_classes().find(status_.code());
  return found != error_classes().end() ? found->second : error_classes().at(StatusCode::ok);
}

std::exception_ptr to_exception(const Status& status) {
  return std::make_exception_ptr(CommException(status));
}

void throw_if_error(const Status& status) {
  if (!status.ok()) throw CommException(status);
}

void register_errors() {
  auto errors = py::module_::import("dmlcomm.errors");
  auto look_up = [&](const char* name) { return py::object(errors.attr(name)).release().ptr(); };
  error_classes() = {{StatusCode::ok, look_up("CommError")},
                     {StatusCode::peer_lost, look_up("PeerLostError")},
                     {StatusCode::mismatch, look_up("CollectiveMismatchError")},
                     {StatusCode::timeout, look_up("CommTimeoutError")},
                     {StatusCode::aborted, look_up("AbortedError")}};
  py::register_exception_translator(&translate);
}

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
