// EngineOptions: a communicator's knowledge of itself when it is made.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/config.h"

namespace dmlcomm::engine {

struct EngineOptions {
  int rank = 0;
  int num_ranks = 1;
  std::string name;
  std::vector<int> global_ranks;
  std::vector<std::string> names;        // see CommunicatorOptions
  std::vector<uint32_t> grid;            // see CommunicatorOptions
  std::vector<uint32_t> host_of_rank;    // empty where `grid` is
  std::vector<uint64_t> rail_rates_bps;  // see CommunicatorOptions
  int first_rail = -1;                   // see CommunicatorOptions
  std::string plan;                      // see CommunicatorOptions
  uint64_t first_sequence = 1;           // see CommunicatorOptions
  Config config;
};

}  // namespace dmlcomm::engine
