#include "engine/completion.h"

#include <exception>
#include <new>
#include <utility>

#include "base/exceptions.h"
#include "base/log.h"

namespace dmlcomm::engine {

Status Completion::wait(std::chrono::milliseconds timeout) {
  if (wait_done(deadline_of_wait(timeout))) return status_;
  return Status(StatusCode::timeout, "the operation is still running");
}

void Completion::on_done(std::function<void(const Status&)> callback) {
  {
    std::lock_guard lock(mutex_);
    if (!done()) {
      callbacks_.push_back(std::move(callback));
      return;
    }
  }
  callback(status_);
}

void Completion::complete(const Status& status) {
  std::vector<std::function<void(const Status&)>> callbacks;
  {
    std::lock_guard lock(mutex_);
    if (done()) return;
    try {
      status_ = status;
    } catch (const std::bad_alloc&) {
      status_ = Status(status.code(), kNoMemory);
    }
    done_.store(true, std::memory_order_release);
    callbacks.swap(callbacks_);
  }
  changed_.notify_all();
  for (auto& callback : callbacks) {
    try {
      callback(status_);
    } catch (const std::exception& error) {
      log_error("what follows the end of an operation has failed: ", error.what());
    }
  }
}

bool Completion::wait_done(Deadline deadline) {
  std::unique_lock lock(mutex_);
  const auto is_done = [this] { return done(); };
  if (deadline.is_never()) {
    changed_.wait(lock, is_done);
    return true;
  }
  return changed_.wait_for(lock, std::chrono::nanoseconds(deadline.remaining_ns()), is_done);
}

}  // namespace dmlcomm::engine
