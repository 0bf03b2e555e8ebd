// Pricing: what each algorithm of an operation takes on a topology, for people who plan.
//
// The planner compares closed forms, since it has microseconds. Here time is counted in seconds, so
// the schedules themselves are simulated wherever that ends in time.
#pragma once

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
  formula,     // the closed form beside the generator
};

struct Price {
  const Algorithm* algorithm = nullptr;
  double seconds = 0;
  PricedBy priced_by = PricedBy::formula;
  // Not known of large groups in which ranks do different things.
  std::optional<Traffic> traffic;
};

// The algorithms of `kind` that apply to the topology, in the order of the table. `bytes`, rounded
// down to whole elements, are those of the whole vector (all_reduce, reduce, broadcast), of all
// pieces together (all_gather, gather, scatter, reduce_scatter), which differ by one element at
// most, or of one rank's input (all_to_all). The root is rank 0.
//
// `invalid_argument` for a topology that is not legal, and for a kind without algorithms.
Result<std::vector<Price>> price_all(const topology::Topology& topology, OpKind kind,
                                     uint64_t bytes, uint32_t element_bytes);

}  // namespace dmlcomm::schedule
