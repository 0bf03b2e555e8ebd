#include "torch/settled_operation.h"

#include <utility>

namespace dmlcomm::adaptor {

void SettledOperation::finish(Status status) {
  std::vector<std::function<void(const Status&)>> callbacks;
  {
    std::lock_guard lock(mutex_);
    if (done_.load(std::memory_order_relaxed)) return;
    status_ = std::move(status);
    done_.store(true, std::memory_order_release);
    callbacks.swap(callbacks_);
  }
  finished_.notify_all();
  for (auto& callback : callbacks) callback(status_);
}

Status SettledOperation::wait(std::chrono::milliseconds timeout) {
  std::unique_lock lock(mutex_);
  if (timeout.count() <= 0) {
    finished_.wait(lock, [this] { return done(); });
  } else if (!finished_.wait_for(lock, timeout, [this] { return done(); })) {
    return {StatusCode::timeout, "the operation is still running"};
  }
  return status_;
}

void SettledOperation::on_done(std::function<void(const Status&)> callback) {
  {
    std::lock_guard lock(mutex_);
    if (!done()) {
      callbacks_.push_back(std::move(callback));
      return;
    }
  }
  callback(status_);
}

}  // namespace dmlcomm::adaptor
