// Errors on their way from the engine to Python: Status -> C++ exception -> class of
// dmlcomm.errors; and Ctrl-C on its way to C++ that waits.
//
// CommException derives from torch::PyTorchError and not from c10::Error: that is the one base for
// which both of torch's ways into Python (pybind11's translators and HANDLE_TH_ERRORS, through
// which autograd and futures report) ask the exception itself for its Python class.
#pragma once

#include <torch/csrc/Exceptions.h>

#include <exception>

#include "base/status.h"

namespace dmlcomm::adaptor {

class CommException final : public ::torch::PyTorchError {
 public:
  // The message starts with the code, "peer_lost: rank 3 ...": `CommError.code` reads it back.
  explicit CommException(const Status& status);

  // Borrowed. The GIL is not needed: the classes were looked up when the module was imported.
  PyObject* python_type() override;

  const Status& status() const { return status_; }

 private:
  Status status_;
};

std::exception_ptr to_exception(const Status& status);

// Throws unless ok.
void throw_if_error(const Status& status);

// Looks up the classes of dmlcomm.errors and registers the translator. Once, at import.
void register_errors();

// Remembers which thread is Python's main thread. Once, at import.
void remember_main_thread();

// On the main thread, the only one on which Python runs signal handlers: runs those of signals that
// have arrived, taking the GIL for it; throws py::error_already_set (KeyboardInterrupt) if one
// raised. Elsewhere: nothing.
void check_interrupts();

}  // namespace dmlcomm::adaptor
