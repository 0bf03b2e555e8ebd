// gather, direct: every rank sends its piece to the root.
//
// Source: folklore. A rank other than the root knows its own count only.
//
// Steps: one round. On the wire: the root receives S (N - 1) / N bytes in N - 1
// messages, the least possible.
//
// Example, N = 3, root 1: 0 and 2 send to 1, which copies its own input to piece 1 of the output.
#include "schedule/algorithms/generators.h"

namespace dmlcomm::schedule {

Schedule gather_direct(const OpShape& shape, const topology::Topology&) {
  const uint32_t rank = shape.rank;
  const Range own{BufferId::input, 0, shape.counts[rank]};
  ScheduleBuilder builder(shape);
  if (rank != shape.root) {
    builder.send(own, shape.root);
    return builder.build();
  }
  const Pieces pieces(shape.counts);
  for (uint32_t peer : ranks_after(rank, shape.num_ranks)) {
    builder.recv(pieces.in(BufferId::output, peer), peer);
  }
  builder.copy(pieces.in(BufferId::output, rank), own);
  return builder.build();
}

double gather_direct_seconds(const EstimateTerms& terms) {
  return terms.latency() + terms.all(0, terms.bytes_of_others());
}

}  // namespace dmlcomm::schedule
