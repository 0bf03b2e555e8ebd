// Rendezvous: the key-value store through which the ranks of one communicator find each other.
// The torch adaptor implements it on c10d::Store; tests implement it in memory.
#pragma once

#include <chrono>
#include <string>

#include "base/status.h"

namespace dmlcomm::transport {

class Rendezvous {
 public:
  virtual ~Rendezvous() = default;

  // Publishes `value` under `key`; visible to every rank of this communicator and to no other.
  virtual Status set(const std::string& key, const std::string& value) = 0;

  // Waits until `key` is there. Fails with `timeout`, naming the key.
  virtual Result<std::string> get(const std::string& key, std::chrono::milliseconds timeout) = 0;
};

}  // namespace dmlcomm::transport
