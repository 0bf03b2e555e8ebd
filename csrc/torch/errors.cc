#include "torch/errors.h"

#include <pybind11/pybind11.h>

namespace py = pybind11;

namespace dmlcomm::adaptor {
namespace {

// Python classes by cause. Never released: exceptions may be translated until the process ends.
struct ErrorClasses {
  PyObject* comm_error = nullptr;
  PyObject* peer_lost = nullptr;
  PyObject* mismatch = nullptr;
  PyObject* timeout = nullptr;
  PyObject* aborted = nullptr;
};

ErrorClasses& error_classes() {
  static ErrorClasses classes;
  return classes;
}

PyObject* class_of(StatusCode code) {
  const ErrorClasses& classes = error_classes();
  switch (code) {
    case StatusCode::peer_lost: return classes.peer_lost;
    case StatusCode::mismatch: return classes.mismatch;
    case StatusCode::timeout: return classes.timeout;
    case StatusCode::aborted: return classes.aborted;
    default: return classes.comm_error;
  }
}

void translate(std::exception_ptr error) {
  try {
    if (error) std::rethrow_exception(error);
  } catch (CommException& e) {
    ::PyErr_SetString(e.python_type(), e.what());
  }
}

}  // namespace

CommException::CommException(const Status& status)
    : PyTorchError(status.to_string()), code_(status.code()) {}

PyObject* CommException::python_type() { return class_of(code_); }

std::exception_ptr to_exception(const Status& status) {
  return std::make_exception_ptr(CommException(status));
}

void throw_if_error(const Status& status) {
  if (!status.ok()) throw CommException(status);
}

void register_errors() {
  auto errors = py::module_::import("dmlcomm.errors");
  auto look_up = [&](const char* name) { return py::object(errors.attr(name)).release().ptr(); };
  error_classes() = ErrorClasses{
      .comm_error = look_up("CommError"),
      .peer_lost = look_up("PeerLostError"),
      .mismatch = look_up("CollectiveMismatchError"),
      .timeout = look_up("CommTimeoutError"),
      .aborted = look_up("AbortedError"),
  };
  py::register_exception_translator(&translate);
}

}  // namespace dmlcomm::adaptor
