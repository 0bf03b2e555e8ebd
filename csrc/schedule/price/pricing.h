// Pricing: the time of each algorithm of an operation on a topology, for people who plan.
//
// The planner compares estimates, since it has microseconds. Here time is counted in seconds, so
// the schedules themselves are simulated wherever that ends in time. The two may choose
// differently.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "base/status.h"
#include "schedule/algorithms.h"
#include "schedule/op_shape.h"
#include "schedule/price/traffic.h"
#include "topology/topology.h"

namespace dmlcomm::schedule {

enum class PricedBy {
  simulation,  // of all ranks
  lockstep,    // of one rank, which stands for all
  estimate,    // the closed form beside the generator
};

struct Price {
  const Algorithm* algorithm = nullptr;
  double seconds = 0;
  PricedBy priced_by = PricedBy::estimate;
  double estimate_s = 0;  // which a job compares
  // Not known of large groups in which ranks do different things.
  std::optional<Traffic> traffic;
};

struct Comparison {
  std::vector<Price> prices;  // in the order of the table
  size_t chosen = 0;          // what a job takes
  // The least of `seconds`, as far as one is clearly less; `chosen` where that is no schedule, of
  // which nothing is simulated.
  size_t fastest = 0;
};

// The algorithms of `kind` that apply to the topology and can carry so much. `bytes`, rounded
// down to whole elements, are those of the whole vector (all_reduce, reduce, broadcast), of all
// pieces together (all_gather, gather, scatter, reduce_scatter), which differ by one element at
// most, or of one rank's input (all_to_all). The root is rank 0.
//
// `invalid_argument` for a topology that is not legal, and for a kind without algorithms.
//
// `job` is the same network as a job knows it, for its choice and estimates.
Result<Comparison> compare(const topology::Topology& topology, const topology::Topology& job,
                           OpKind kind, uint64_t bytes, uint32_t element_bytes);

// Proves the schedules of the algorithms of `kind` that apply to the topology, with pieces of a few
// elements. `invalid_argument` names the first fault; also where there are too many ranks.
Status verify_all(const topology::Topology& topology, OpKind kind);

}  // namespace dmlcomm::schedule
