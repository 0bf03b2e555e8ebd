// Ranks of one communicator as threads of the test: real sockets, real shared memory, and one
// address space that the sanitizers see.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/config.h"
#include "engine/communicator.h"
#include "transport/rendezvous.h"

namespace dmlcomm::tests {

// A rendezvous within this process.
std::shared_ptr<transport::Rendezvous> memory_rendezvous();

// Ways of carrying data, as configurations.
struct Transport {
  std::string name;
  Config config;
};
// Board, board without single copy, single copy without board, rings without either, TCP.
const std::vector<Transport>& all_transports();

// Runs `body` once per rank, each on its own thread with its own communicator, and fails the test
// if they are not all done within `deadline_s`.
void run_ranks(int num_ranks, const Config& config,
               const std::function<void(engine::Communicator&)>& body, double deadline_s = 60,
               uint64_t first_sequence = 1);

// The communicators of one group, for tests that let ranks live and die one by one.
std::vector<std::shared_ptr<engine::Communicator>> make_group(int num_ranks, const Config& config,
                                                              uint64_t first_sequence = 1);

}  // namespace dmlcomm::tests
