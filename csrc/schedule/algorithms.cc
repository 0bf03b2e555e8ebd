#include "schedule/algorithms.h"

#include <bit>

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

// Of several ranks of a host only one sends to the next host.
bool on_single_ranks(const Topology& topology) { return topology.max_ranks_per_host() == 1; }

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

}  // namespace

// Row (op, algorithm) refers to op_algorithm and op_algorithm_seconds.
#define DMLCOMM_ROW(op, algorithm, needs, is_lockstep, length, shows_rates)                 \
  Algorithm{OpKind::op,          #algorithm,       needs,       op##_##algorithm##_seconds, \
            Execution::schedule, op##_##algorithm, is_lockstep, length,                     \
            shows_rates},

// Ways through memory, and the operations that have them.
#define DMLCOMM_IN_MEMORY(op, algorithm, needs, can_carry)                                     \
  Algorithm{OpKind::op,                                                                        \
            #algorithm,                                                                        \
            needs,                                                                             \
            [](const EstimateTerms& terms) { return algorithm##_seconds(OpKind::op, terms); }, \
            Execution::algorithm,                                                              \
            nullptr,                                                                           \
            nullptr,                                                                           \
            kShort,                                                                            \
            never,                                                                             \
            can_carry,                                                                         \
            algorithm##_wins},
#define DMLCOMM_SLOTS(op) DMLCOMM_IN_MEMORY(op, slots, kMemory, fits_slots)
#define DMLCOMM_PEER_MEMORY(op) DMLCOMM_IN_MEMORY(op, peer_memory, kPeers, nullptr)
#define DMLCOMM_OF_SLOTS(X) \
  X(all_reduce) X(reduce) X(broadcast) X(all_gather) X(reduce_scatter) X(barrier)
#define DMLCOMM_OF_PEER_MEMORY(X) \
  X(all_reduce)                   \
  X(reduce) X(broadcast) X(all_gather) X(gather) X(scatter) X(reduce_scatter) X(all_to_all)

const std::vector<Algorithm>& all_algorithms() {
  static const std::vector<Algorithm> table = {
      DMLCOMM_SCHEDULES(DMLCOMM_ROW)               //
      DMLCOMM_OF_SLOTS(DMLCOMM_SLOTS)              //
      DMLCOMM_OF_PEER_MEMORY(DMLCOMM_PEER_MEMORY)  //
  };
  return table;
}

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
