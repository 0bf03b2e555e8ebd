// ServerAllReduce: all_reduce of a group through the parameter servers.
//
// The client of the servers is a Python object, the class ServerAllReduce of
// dmlcomm/backends/server_all_reduce.py; this is the adaptor's side of it. Tensors go there with a
// ServerOperation, which that object ends. Their elements are moved by csrc/ps all the same.
//
// Threads: any, with the GIL or without. Nothing here waits for other ranks.
#pragma once

#include <ATen/ATen.h>
#include <Python.h>

#include <chrono>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "engine/completion.h"

namespace dmlcomm::adaptor {

// One all_reduce that the servers carry out. Python ends it, or a failure of the group.
class ServerOperation final : public engine::Completion {
 public:
  explicit ServerOperation(std::shared_ptr<engine::Communicator> communicator);

  // Also ends it when the group has failed meanwhile: a rank that is lost may be the one that the
  // servers wait for.
  Status wait(std::chrono::milliseconds timeout) override;
  // Collectives of the engine are numbered, these are not among them.
  uint64_t sequence() const override { return 0; }

  // The group fails with it: ranks that do not take part any more are out of step.
  void fail(const Status& status);

 private:
  const std::shared_ptr<engine::Communicator> communicator_;
};

class ServerAllReduce {
 public:
  // `object` is the Python object. Needs the GIL.
  explicit ServerAllReduce(PyObject* object);
  ~ServerAllReduce();
  ServerAllReduce(const ServerAllReduce&) = delete;
  ServerAllReduce& operator=(const ServerAllReduce&) = delete;

  // Whether the servers do this; if not, the log says so once. The answer is the same
  // on all ranks that ask the same questions in the same order.
  bool takes(const std::string& op, const at::Tensor& tensor);

  // Reduces `input` into `output`: contiguous, of one size, apart from each other.
  std::shared_ptr<ServerOperation> start(const std::string& op, const at::Tensor& input,
                                         const at::Tensor& output,
                                         std::shared_ptr<engine::Communicator> communicator);

  // Replaces the deadline of operations that start from now on. Any thread.
  void set_timeout(std::chrono::milliseconds timeout);

  // Ends pending operations with `reason`, and leaves the servers. Idempotent.
  void close(const Status& reason);

 private:
  PyObject* const object_;

  std::mutex mutex_;
  // Guarded by mutex_.
  std::vector<std::weak_ptr<ServerOperation>> pending_;
  bool closed_ = false;
};

}  // namespace dmlcomm::adaptor
