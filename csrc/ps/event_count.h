// EventCount: lets threads sleep until their condition may have changed.
//
// A waiter reads epoch(), tests its condition, and if that does not hold calls wait_past(epoch). A
// thread that makes a condition true calls signal() afterwards: either the waiter saw the change,
// or the epoch has moved. A signal costs one atomic addition while nobody sleeps.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>

#include "base/clock.h"

namespace dmlcomm::ps {

class EventCount {
 public:
  uint64_t epoch() const { return epoch_.load(); }

  void signal() {
    epoch_.fetch_add(1);
    if (num_waiting_.load() == 0) return;
    { std::lock_guard lock(mutex_); }
    changed_.notify_all();
  }

  // False after `time`.
  bool wait_past(uint64_t epoch, std::chrono::nanoseconds time) {
    std::unique_lock lock(mutex_);
    num_waiting_.fetch_add(1);
    const bool moved = changed_.wait_for(lock, time, [&] { return epoch_.load() != epoch; });
    num_waiting_.fetch_sub(1);
    return moved;
  }

  // True when `test()` holds, false after `deadline`.
  template <typename Test>
  bool wait_until(Deadline deadline, Test test) {
    for (;;) {
      const uint64_t before = epoch();
      if (test()) return true;
      if (deadline.expired()) return false;
      (void)wait_past(before, std::chrono::nanoseconds(deadline.remaining_ns()));
    }
  }

 private:
  std::atomic<uint64_t> epoch_{0};
  std::atomic<int> num_waiting_{0};
  std::mutex mutex_;
  std::condition_variable changed_;
};

}  // namespace dmlcomm::ps
