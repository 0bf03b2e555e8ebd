#include "schedule/algorithms.h"

#include <bit>
#include <type_traits>

#include "base/check.h"
#include "schedule/algorithms/generators.h"
#include "schedule/algorithms/hierarchy.h"
#include "schedule/algorithms/shared_memory.h"

namespace dmlcomm::schedule {
namespace {

using topology::Topology;

bool always(const Topology&) { return true; }
bool never(const Topology&) { return false; }

// Of a host's ranks one sends to the next host, and on a grid the next host is on another level for
// some ranks.
bool in_a_ring(const Topology& topology) {
  return topology.max_ranks_per_host() == 1 && topology.grid.empty();
}

// Elsewhere the ranks beyond the power of two are folded.
bool for_powers_of_two(const Topology& topology) {
  return std::has_single_bit(topology.num_ranks());
}

bool has_one_rank_per_host_of_grid(const Topology& topology) {
  return !topology.grid.empty() && topology.max_ranks_per_host() == 1;
}

bool shares_cores_of_loopback(const Topology& topology) {
  return topology.ranks_kept_together() > 1;
}

bool shares_memory(const Topology& topology) { return topology.memory.exists; }
bool reaches_peers(const Topology& topology) { return topology.memory.reaches_peers; }

constexpr Requirement kNothing{always, "nothing"};
constexpr Requirement kGrid{has_one_rank_per_host_of_grid, "one rank per host of a grid"};
constexpr Requirement kHosts{is_hierarchical,
                             "several hosts with the same number of ranks, more than one each"};
constexpr Requirement kCores{shares_cores_of_loopback,
                             "ranks of one host over TCP, the same number on each core"};
constexpr Requirement kMemory{shares_memory, "ranks that share one host's memory"};
constexpr Requirement kPeers{reaches_peers,
                             "ranks that share slots, and read and write each other's memory"};

constexpr bool kShort = true, kLong = false;

// Most generators look at ranks alone, and do for any topology.
template <auto kGenerator>
Schedule generate_with(const OpShape& shape, const Topology& topology) {
  if constexpr (std::is_invocable_v<decltype(kGenerator), const OpShape&>) {
    return kGenerator(shape);
  } else {
    return kGenerator(shape, topology);
  }
}

}  // namespace

// Row (op, algorithm) refers to op_algorithm and op_algorithm_seconds.
#define DMLCOMM_SCHEDULE(op, algorithm, needs, is_lockstep, length)                 \
  Algorithm {                                                                       \
    OpKind::op, #algorithm, needs, op##_##algorithm##_seconds, Execution::schedule, \
        generate_with<op##_##algorithm>, is_lockstep, length                        \
  }
#define DMLCOMM_IN_MEMORY(op, algorithm, needs, can_carry, wins)                           \
  Algorithm {                                                                              \
    OpKind::op, #algorithm, needs,                                                         \
        [](const EstimateTerms& terms) { return algorithm##_seconds(OpKind::op, terms); }, \
        Execution::algorithm, nullptr, nullptr, kShort, can_carry, wins                    \
  }
#define DMLCOMM_SLOTS(op) DMLCOMM_IN_MEMORY(op, slots, kMemory, fits_slots, slots_win)
#define DMLCOMM_PEER_MEMORY(op) \
  DMLCOMM_IN_MEMORY(op, peer_memory, kPeers, peers_carry_any, peer_memory_wins)

const std::vector<Algorithm>& all_algorithms() {
  static const std::vector<Algorithm> table = {
      DMLCOMM_SCHEDULE(all_reduce, direct, kNothing, always, kLong),
      DMLCOMM_SCHEDULE(all_reduce, ring, kNothing, in_a_ring, kLong),
      DMLCOMM_SCHEDULE(all_reduce, recursive_doubling, kNothing, for_powers_of_two, kShort),
      DMLCOMM_SCHEDULE(all_reduce, halving_doubling, kNothing, for_powers_of_two, kShort),
      DMLCOMM_SCHEDULE(all_reduce, tree, kNothing, never, kShort),
      DMLCOMM_SCHEDULE(all_reduce, bml, kGrid, always, kShort),
      DMLCOMM_SCHEDULE(all_reduce, bml_ring, kGrid, always, kShort),
      DMLCOMM_SCHEDULE(all_reduce, hierarchical, kHosts, never, kShort),
      DMLCOMM_SCHEDULE(all_reduce, leaders, kCores, never, kShort),
      DMLCOMM_SCHEDULE(reduce, direct, kNothing, never, kLong),
      DMLCOMM_SCHEDULE(reduce, tree, kNothing, never, kLong),
      DMLCOMM_SCHEDULE(broadcast, direct, kNothing, never, kLong),
      DMLCOMM_SCHEDULE(broadcast, tree, kNothing, never, kLong),
      DMLCOMM_SCHEDULE(broadcast, chain, kNothing, never, kLong),
      DMLCOMM_SCHEDULE(broadcast, scatter_allgather, kNothing, never, kLong),
      DMLCOMM_SCHEDULE(broadcast, hierarchical, kHosts, never, kLong),
      DMLCOMM_SCHEDULE(all_gather, direct, kNothing, always, kLong),
      DMLCOMM_SCHEDULE(all_gather, ring, kNothing, in_a_ring, kLong),
      DMLCOMM_SCHEDULE(all_gather, bruck, kNothing, always, kLong),
      DMLCOMM_SCHEDULE(all_gather, bml, kGrid, always, kLong),
      DMLCOMM_SCHEDULE(all_gather, hierarchical, kHosts, never, kLong),
      DMLCOMM_SCHEDULE(gather, direct, kNothing, never, kLong),
      DMLCOMM_SCHEDULE(scatter, direct, kNothing, never, kLong),
      DMLCOMM_SCHEDULE(reduce_scatter, direct, kNothing, always, kLong),
      DMLCOMM_SCHEDULE(reduce_scatter, ring, kNothing, in_a_ring, kLong),
      DMLCOMM_SCHEDULE(reduce_scatter, halving, kNothing, for_powers_of_two, kLong),
      DMLCOMM_SCHEDULE(reduce_scatter, bml, kGrid, always, kLong),
      DMLCOMM_SCHEDULE(reduce_scatter, hierarchical, kHosts, never, kLong),
      DMLCOMM_SCHEDULE(all_to_all, pairwise, kNothing, always, kLong),
      DMLCOMM_SCHEDULE(barrier, dissemination, kNothing, always, kShort),
      DMLCOMM_SLOTS(all_reduce),
      DMLCOMM_SLOTS(reduce),
      DMLCOMM_SLOTS(broadcast),
      DMLCOMM_SLOTS(all_gather),
      DMLCOMM_SLOTS(reduce_scatter),
      DMLCOMM_SLOTS(barrier),
      DMLCOMM_PEER_MEMORY(all_reduce),
      DMLCOMM_PEER_MEMORY(reduce),
      DMLCOMM_PEER_MEMORY(broadcast),
      DMLCOMM_PEER_MEMORY(all_gather),
      DMLCOMM_PEER_MEMORY(gather),
      DMLCOMM_PEER_MEMORY(scatter),
      DMLCOMM_PEER_MEMORY(reduce_scatter),
      DMLCOMM_PEER_MEMORY(all_to_all),
  };
  return table;
}

#undef DMLCOMM_PEER_MEMORY
#undef DMLCOMM_SLOTS
#undef DMLCOMM_IN_MEMORY
#undef DMLCOMM_SCHEDULE

Schedule Algorithm::generate(const OpShape& shape, const Topology& topology) const {
  DMLCOMM_CHECK(is_schedule());
  Schedule schedule = generator(shape, topology);
  schedule.algorithm = this;
  return schedule;
}

uint8_t number_of(const Algorithm& algorithm) {
  return static_cast<uint8_t>(&algorithm - all_algorithms().data() + 1);
}

std::vector<std::string> algorithms_of(OpKind kind) {
  std::vector<std::string> names;
  for (const Algorithm& algorithm : all_algorithms()) {
    if (algorithm.kind == kind) names.push_back(algorithm.name);
  }
  return names;
}

const Algorithm* find_algorithm(OpKind kind, const std::string& name) {
  for (const Algorithm& algorithm : all_algorithms()) {
    if (algorithm.kind == kind && algorithm.name == name) return &algorithm;
  }
  return nullptr;
}

}  // namespace dmlcomm::schedule
