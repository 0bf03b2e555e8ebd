// barrier, dissemination: in round k rank r signals r + 2^k and waits for r - 2^k.
//
// Source: Hensgen, Finkel, Manber, "Two algorithms for barrier synchronization", 1988.
//
// Invariant: before round k a rank has heard, directly or through others, from the 2^k ranks
// r - 2^k + 1 ... r. A signal of round k says so, hence it waits for every earlier round. After
// ceil(log2 N) rounds that is everyone. On the wire: N ceil(log2 N) messages without payload.
//
// Example, N = 3: round 0: 0 to 1, 1 to 2, 2 to 0. Round 1: 0 to 2, 1 to 0, 2 to 1.
#include "schedule/algorithms/generators.h"

namespace dmlcomm::schedule {

Schedule barrier_dissemination(const OpShape& shape, const topology::Topology&) {
  const uint32_t num_ranks = shape.num_ranks;
  ScheduleBuilder builder(shape);
  for (uint64_t distance = 1; distance < num_ranks; distance *= 2) {
    builder.signal(static_cast<uint32_t>((shape.rank + distance) % num_ranks));
    builder.await_signal(static_cast<uint32_t>((shape.rank + num_ranks - distance) % num_ranks));
  }
  return builder.build();
}

double barrier_dissemination_seconds(const EstimateTerms& terms) {
  return ceil_log2(terms.num_ranks) * terms.latency();
}

}  // namespace dmlcomm::schedule
