// Arbiter: the thread of a proxy that arbitrates the NICs of its host (arbitration.h), as those of
// the proxy's network namespace: no process makes up names of others. While
// several jobs send, it looks at their seats every millisecond; while there is one job, next to
// never.
//
// All calls from any thread; none waits.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "proxy/arbitration.h"

namespace dmlcomm::proxy {

class Arbiter {
 public:
  explicit Arbiter(const SharePolicy& policy);
  ~Arbiter();

  // See Arbitration.
  uint64_t add(const std::string& job, unsigned priority, std::shared_ptr<transport::JobSeat> seat);
  void remove(uint64_t seat);
  void drop(const std::string& job, unsigned priority, const std::string& reason);
  std::vector<Arbitration::JobStatus> status();

  // Nobody is held back any more. Idempotent.
  void close();

 private:
  void run();
  void take_round(int64_t now);  // with mutex_

  std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by mutex_.
  Arbitration arbitration_;
  bool closed_ = false;
  bool has_failed_ = false;  // a round; it was logged

  std::once_flag joined_;
  std::thread thread_;
};

}  // namespace dmlcomm::proxy
