// Retired: connections that have failed, while they are closed.
//
// The other side should hear the reason before the connection goes. So closing waits for its end,
// and a process that is stopped does not give one: that takes 0.3 s. Nobody waits for it here.
#pragma once

#include <algorithm>
#include <chrono>
#include <future>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "base/exceptions.h"

namespace dmlcomm::ps {

// Any thread may call. Its end waits for those that are left.
class Retired {
 public:
  // Closes and frees it in a thread of its own, or here if the process may have no further one.
  template <typename Connection>
  void close(std::shared_ptr<Connection> connection) {
    std::lock_guard lock(mutex_);
    std::erase_if(closing_, [](const std::future<void>& one) {
      return one.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
    });
    const Status started = without_exceptions([&] {
      closing_.push_back(std::async(std::launch::async, [one = connection]() mutable {
        one->close();
        one.reset();
      }));
      return Status();
    });
    if (!started.ok()) connection->close();
  }

 private:
  std::mutex mutex_;
  std::vector<std::future<void>> closing_;  // guarded by mutex_
};

}  // namespace dmlcomm::ps
