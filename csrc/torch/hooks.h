// Hooks: functions of torch's users that a group calls when its operations end (c10d's Hooks.hpp).
//
// An abort hook is called before a failure is told: by the thread that waits for the operation, in
// the CompletionPool where nobody waits, and by abort(). A completion hook is called once for each
// Work that has succeeded. Neither holds a lock of the engine, and either may take the GIL. They
// may be called from several threads at once.
//
// Threads: any. Torch before 2.15 registers none.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "base/log.h"

namespace dmlcomm::adaptor {

class Hooks {
 public:
  using Abort = std::function<void()>;
  using Completion = std::function<void(uint64_t key)>;  // of the Work

  bool any() const { return num_hooks_.load(std::memory_order_relaxed) > 0; }

  void add_abort(int64_t id, Abort hook) { add(aborts_, id, std::move(hook)); }
  void add_completion(int64_t id, Completion hook) { add(completions_, id, std::move(hook)); }
  void remove_abort(int64_t id) { remove(aborts_, id); }
  void remove_completion(int64_t id) { remove(completions_, id); }

  void on_abort() const { call(aborts_); }
  void on_end(bool has_succeeded, uint64_t key) const {
    has_succeeded ? call(completions_, key) : call(aborts_);
  }

 private:
  template <typename Hook>
  void add(std::map<int64_t, Hook>& hooks, int64_t id, Hook hook) {
    std::lock_guard lock(mutex_);
    hooks[id] = std::move(hook);
    num_hooks_.store(aborts_.size() + completions_.size());
  }

  template <typename Hook>
  void remove(std::map<int64_t, Hook>& hooks, int64_t id) {
    Hook removed;  // destroyed without the lock, since that may take the GIL
    std::lock_guard lock(mutex_);
    const auto found = hooks.find(id);
    if (found == hooks.end()) return;
    removed = std::move(found->second);
    hooks.erase(found);
    num_hooks_.store(aborts_.size() + completions_.size());
  }

  // In the order of their ids, without the lock. One that throws does not keep the others.
  template <typename Hook, typename... Args>
  void call(const std::map<int64_t, Hook>& hooks, Args... args) const;

  mutable std::mutex mutex_;
  std::map<int64_t, Abort> aborts_;            // guarded by mutex_
  std::map<int64_t, Completion> completions_;  // guarded by mutex_
  std::atomic<size_t> num_hooks_{0};
};

template <typename Hook, typename... Args>
void Hooks::call(const std::map<int64_t, Hook>& hooks, Args... args) const {
  std::vector<Hook> copies;
  {
    std::lock_guard lock(mutex_);
    for (const auto& [id, hook] : hooks) copies.push_back(hook);
  }
  for (const Hook& hook : copies) {
    try {
      hook(args...);
    } catch (const std::exception& error) {
      log_warning("a hook of a process group has failed: ", error.what());
    }
  }
}

}  // namespace dmlcomm::adaptor
