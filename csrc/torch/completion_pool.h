// CompletionPool: threads on which torch code runs when an operation ends and nobody waits for it.
//
// The engine's progress thread must not run it: a Future's callback may take the GIL, and may wait
// for another collective, which needs that very thread. For the same reason the pool is elastic:
// work that finds every thread busy gets a new one, idle threads leave after `kIdleLimit`.
#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>

namespace dmlcomm::adaptor {

class CompletionPool {
 public:
  // The process's pool. Lives until the process ends.
  static CompletionPool& instance();

  // Runs `work` soon on another thread. From any thread; never blocks on running work.
  void submit(std::function<void()> work);

  // Waits until nothing is queued or running and the threads have left, at most `limit`. The caller
  // must not hold the GIL. Called at exit, when no communicator is left to submit more.
  void drain(std::chrono::milliseconds limit);

 private:
  static constexpr std::chrono::seconds kIdleLimit{1};

  CompletionPool() = default;
  void run();

  std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by mutex_.
  std::deque<std::function<void()>> queue_;
  size_t num_threads_ = 0;
  size_t num_idle_ = 0;
  bool draining_ = false;
};

}  // namespace dmlcomm::adaptor
