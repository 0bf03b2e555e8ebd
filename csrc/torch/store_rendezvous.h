// StoreRendezvous: the engine's key-value store on the c10d::Store that torch hands to a backend.
#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <exception>
#include <string>

#include "transport/rendezvous.h"

namespace dmlcomm::adaptor {

class StoreRendezvous final : public transport::Rendezvous {
 public:
  // `store` is prefixed per group by torch already, which makes keys private to the communicator.
  explicit StoreRendezvous(c10::intrusive_ptr<c10d::Store> store) : store_(std::move(store)) {}

  Status set(const std::string& key, const std::string& value) override;
  Result<std::string> get(const std::string& key, std::chrono::milliseconds timeout) override;

  // The KeyboardInterrupt that ended a get() with `aborted`, to be rethrown by who asked; or null.
  std::exception_ptr interrupt() const { return interrupt_; }

 private:
  bool interrupted();

  c10::intrusive_ptr<c10d::Store> store_;
  std::exception_ptr interrupt_;
};

}  // namespace dmlcomm::adaptor
