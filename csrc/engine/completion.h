// Completion: the part of an operation that all kinds of it share: the outcome, the threads that
// sleep until it is known, and the callbacks.
//
// Threads: any. The first outcome counts; later ones are ignored.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <vector>

#include "base/clock.h"
#include "engine/communicator.h"

namespace dmlcomm::engine {

class Completion : public Operation {
 public:
  bool done() const final { return done_.load(std::memory_order_acquire); }
  const Status& status() const final { return status_; }
  // Sleeps; operations that need a driver replace this.
  Status wait(std::chrono::milliseconds timeout) override;
  void on_done(std::function<void(const Status&)> callback) final;
  int source_rank() const override { return -1; }

  // Ends the operation, and calls the callbacks in this thread.
  void complete(const Status& status);
  // Sleeps until done or `deadline`; true if done.
  bool wait_done(Deadline deadline);

 private:
  // Released after status_ is set, which is constant from then on.
  std::atomic<bool> done_{false};
  Status status_;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::function<void(const Status&)>> callbacks_;  // guarded by mutex_
};

// Of Operation::wait(): 0 stands for no limit.
inline Deadline deadline_of_wait(std::chrono::milliseconds timeout) {
  return timeout.count() > 0 ? Deadline::after_ns(timeout.count() * kNsPerMs) : Deadline();
}

}  // namespace dmlcomm::engine
