#include "torch/completion_pool.h"

#include <pthread.h>

#include <exception>
#include <system_error>
#include <thread>
#include <utility>

#include "base/log.h"

namespace dmlcomm::adaptor {

CompletionPool& CompletionPool::instance() {
  // Never destroyed: detached threads may outlive static destructors.
  static auto* pool = new CompletionPool;
  return *pool;
}

void CompletionPool::submit(std::function<void()> work) {
  std::unique_lock lock(mutex_);
  queue_.push_back(std::move(work));
  if (num_idle_ >= queue_.size()) {
    changed_.notify_one();
    return;
  }
  try {
    std::thread([this] { run(); }).detach();
    ++num_threads_;
    return;
  } catch (const std::system_error&) {
    if (num_threads_ > 0) return;  // they do it when they can
  }
  // The process may have no further thread: holding up the caller is better than ending it.
  std::function<void()> own = std::move(queue_.back());
  queue_.pop_back();
  lock.unlock();
  own();
}

void CompletionPool::drain(std::chrono::milliseconds limit) {
  std::unique_lock lock(mutex_);
  draining_ = true;
  changed_.notify_all();
  changed_.wait_for(lock, limit, [this] { return num_threads_ == 0; });
  draining_ = false;
}

void CompletionPool::run() {
  pthread_setname_np(pthread_self(), "dmlcomm-done");
  std::unique_lock lock(mutex_);
  for (;;) {
    if (queue_.empty()) {
      ++num_idle_;
      changed_.wait_for(lock, kIdleLimit, [this] { return !queue_.empty() || draining_; });
      --num_idle_;
      if (queue_.empty()) break;
    }
    auto work = std::move(queue_.front());
    queue_.pop_front();
    lock.unlock();
    try {
      work();
    } catch (const std::exception& error) {
      log_error("what follows the end of an operation has failed: ", error.what());
    }
    work = nullptr;  // Its captures may take the GIL when they are released: not under the lock.
    lock.lock();
  }
  --num_threads_;
  changed_.notify_all();
}

}  // namespace dmlcomm::adaptor
