// Rendezvous: where the ranks of one communicator find each other, usually a key-value store.
// The torch adaptor implements it on c10d::Store; tests implement it in memory.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "base/status.h"

namespace dmlcomm::transport {

class Rendezvous {
 public:
  virtual ~Rendezvous() = default;

  // Publishes `value` of `rank` under `name`, and waits for what every other rank of this
  // communicator publishes there: the values by rank. A name is used once. Fails with `timeout`,
  // saying which ranks are missing.
  virtual Result<std::vector<std::string>> exchange(const std::string& name, int rank,
                                                    int num_ranks, const std::string& value,
                                                    std::chrono::milliseconds timeout) = 0;
};

}  // namespace dmlcomm::transport
