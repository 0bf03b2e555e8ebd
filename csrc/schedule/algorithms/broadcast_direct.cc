// broadcast, direct: the root sends to everyone.
//
// Source: folklore. Best where sending is free (single copy in shared memory: all receivers read
// the root's memory at the same time); the baseline elsewhere.
//
// Steps: one round. On the wire: the root sends S (N - 1) bytes in N - 1 messages.
//
// Example, N = 3, root 1: 1 sends to 2 and 0.
#include "schedule/algorithms/generators.h"

namespace dmlcomm::schedule {

Schedule broadcast_direct(const OpShape& shape, const topology::Topology&) {
  const Range all{BufferId::output, 0, shape.counts[0]};
  ScheduleBuilder builder(shape);
  if (shape.rank != shape.root) {
    builder.recv(all, shape.root);
    return builder.build();
  }
  for (uint32_t peer : ranks_after(shape.rank, shape.num_ranks)) builder.send(all, peer);
  return builder.build();
}

double broadcast_direct_seconds(const EstimateTerms& terms) {
  return terms.latency_of(1, terms.others()) +
         terms.spread(terms.bytes * terms.others(), terms.bytes);
}

}  // namespace dmlcomm::schedule
