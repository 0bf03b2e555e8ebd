#include "torch/server_all_reduce.h"

#include <pybind11/pybind11.h>
#include <torch/csrc/utils/pybind.h>

#include <utility>

namespace py = pybind11;

namespace dmlcomm::adaptor {

ServerOperation::ServerOperation(std::shared_ptr<engine::Communicator> communicator)
    : communicator_(std::move(communicator)) {}

Status ServerOperation::wait(std::chrono::milliseconds timeout) {
  const Status status = Completion::wait(timeout);
  if (!done()) {
    if (const Status error = communicator_->error(); !error.ok()) complete(error);
  }
  return status;
}

void ServerOperation::fail(const Status& status) {
  if (done()) return;
  complete(status);
  communicator_->abort(status.message());
}

ServerAllReduce::ServerAllReduce(PyObject* object) : object_(object) { Py_INCREF(object_); }

ServerAllReduce::~ServerAllReduce() {
  if (!Py_IsInitialized()) return;
  const py::gil_scoped_acquire gil;
  Py_DECREF(object_);
}

bool ServerAllReduce::takes(const std::string& op, const at::Tensor& tensor) {
  const py::gil_scoped_acquire gil;
  return py::handle(object_).attr("takes")(op, tensor).cast<bool>();
}

std::shared_ptr<ServerOperation> ServerAllReduce::start(
    const std::string& op, const at::Tensor& input, const at::Tensor& output,
    std::shared_ptr<engine::Communicator> communicator) {
  auto operation = std::make_shared<ServerOperation>(std::move(communicator));
  {
    std::lock_guard lock(mutex_);
    std::erase_if(pending_, [](const auto& weak) {
      const auto one = weak.lock();
      return one == nullptr || one->done();
    });
    pending_.push_back(operation);
  }
  const py::gil_scoped_acquire gil;
  py::handle(object_).attr("start")(op, input, output, operation);
  return operation;
}

void ServerAllReduce::set_timeout(std::chrono::milliseconds timeout) {
  const py::gil_scoped_acquire gil;
  py::handle(object_).attr("set_timeout")(static_cast<double>(timeout.count()) / 1000);
}

void ServerAllReduce::close(const Status& reason) {
  std::vector<std::weak_ptr<ServerOperation>> pending;
  {
    std::lock_guard lock(mutex_);
    if (std::exchange(closed_, true)) return;
    pending.swap(pending_);
  }
  for (const auto& weak : pending) {
    if (const auto operation = weak.lock()) operation->complete(reason);
  }
  if (!Py_IsInitialized()) return;
  const py::gil_scoped_acquire gil;
  try {
    py::handle(object_).attr("close")();
  } catch (py::error_already_set& error) {
    error.discard_as_unraisable("leaving the parameter servers");
  }
}

}  // namespace dmlcomm::adaptor
