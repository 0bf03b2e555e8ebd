// Topologies of a number of ranks, for tests of algorithms that do not apply to every one.
#pragma once

#include <cstdint>
#include <vector>

#include "schedule/algorithms.h"
#include "topology/topology.h"

namespace dmlcomm::schedule {

// The rows of the table that have generators.
std::vector<Algorithm> all_schedules();

// 0, 1, ..., N - 1: one rank per host, in their order.
std::vector<uint32_t> one_rank_per_host(uint32_t num_hosts);

// Every way to write `num_hosts` as levels of a grid, in every order. None for fewer than 2.
std::vector<std::vector<uint32_t>> grids_of(uint32_t num_hosts);

// Ranks of one host that talk over loopback, so many on each core.
topology::Topology loopback_on_cores(uint32_t num_ranks, uint32_t per_core);

// Where an algorithm is to be tried: one host, with shared memory and over loopback, if it applies
// there, since it is then the same everywhere; else loopback on fewer cores than ranks, every grid
// of one rank per host, and of 1 to 4 hosts with 2 to 4 ranks each every grid and flat networks,
// with ranks in the order of hosts and interleaved; of these, those to which it applies.
std::vector<topology::Topology> topologies_of(const Algorithm& algorithm, uint32_t num_ranks);

}  // namespace dmlcomm::schedule
