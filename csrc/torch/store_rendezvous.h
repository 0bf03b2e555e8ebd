// StoreRendezvous: the engine's rendezvous on the c10d::Store that torch hands to a backend.
//
// An exchange costs a rank the same few calls for any number of ranks. It publishes its value and
// counts itself. The last one finds all values there and says so; the others look for its word,
// which is one short key, and now and then for the values. Then each reads all values in one call.
#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <exception>
#include <functional>
#include <string>
#include <vector>

#include "transport/rendezvous.h"

namespace dmlcomm::adaptor {

class StoreRendezvous final : public transport::Rendezvous {
 public:
  // `store` is prefixed per group by torch already, which makes keys private to the communicator.
  // `reason_to_end` ends an exchange early, unless it is ok; it is asked again and again.
  StoreRendezvous(c10::intrusive_ptr<c10d::Store> store, std::function<Status()> reason_to_end)
      : store_(std::move(store)), reason_to_end_(std::move(reason_to_end)) {}

  Result<std::vector<std::string>> exchange(const std::string& name, int rank, int num_ranks,
                                            const std::string& value,
                                            std::chrono::milliseconds timeout) override;

  // The KeyboardInterrupt that ended an exchange with `aborted`, to be rethrown by who asked; or
  // null.
  std::exception_ptr interrupt() const { return interrupt_; }

 private:
  using Keys = std::vector<std::string>;
  using Clock = std::chrono::steady_clock;

  Status meet(const std::string& name, const Keys& keys, bool is_last,
              std::chrono::milliseconds timeout);
  Status wait(const std::string& key, Clock::time_point deadline);
  Status missing(const std::string& name, const Keys& keys, std::chrono::milliseconds timeout);
  bool interrupted();

  c10::intrusive_ptr<c10d::Store> store_;
  const std::function<Status()> reason_to_end_;
  std::exception_ptr interrupt_;
};

}  // namespace dmlcomm::adaptor
