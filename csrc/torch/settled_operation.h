// SettledOperation: an operation whose end the adaptor decides, because it is none of the engine's.
//
// Threads: any. The first outcome counts; later ones are ignored.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <vector>

#include "engine/communicator.h"

namespace dmlcomm::adaptor {

class SettledOperation : public engine::Operation {
 public:
  bool done() const override { return done_.load(std::memory_order_acquire); }
  const Status& status() const override { return status_; }
  Status wait(std::chrono::milliseconds timeout) override;
  void on_done(std::function<void(const Status&)> callback) override;
  int source_rank() const override { return -1; }

 protected:
  // Ends it, and calls the callbacks in this thread.
  void finish(Status status);

 private:
  // Released after status_ is set, which is constant from then on.
  std::atomic<bool> done_{false};
  Status status_;

  std::mutex mutex_;
  std::condition_variable finished_;
  std::vector<std::function<void(const Status&)>> callbacks_;  // guarded by mutex_
};

}  // namespace dmlcomm::adaptor
