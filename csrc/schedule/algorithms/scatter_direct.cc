// scatter, direct: the root sends every rank its piece.
//
// Source: folklore. A rank other than the root knows its own count only.
//
// Steps: one round. On the wire: the root sends S (N - 1) / N bytes in N - 1
// messages, the least possible.
//
// Example, N = 3, root 1: 1 sends piece 2 to 2 and piece 0 to 0, and copies
// piece 1 to its own output.
#include "schedule/algorithms/generators.h"

namespace dmlcomm::schedule {

Schedule scatter_direct(const OpShape& shape, const topology::Topology&) {
  const uint32_t rank = shape.rank;
  const Range own{BufferId::output, 0, shape.counts[rank]};
  ScheduleBuilder builder(shape);
  if (rank != shape.root) {
    builder.recv(own, shape.root);
    return builder.build();
  }
  const Pieces pieces(shape.counts);
  for (uint32_t peer : ranks_after(rank, shape.num_ranks)) {
    builder.send(pieces.in(BufferId::input, peer), peer);
  }
  builder.copy(own, pieces.in(BufferId::input, rank));
  return builder.build();
}

double scatter_direct_seconds(const EstimateTerms& terms) {
  const double others = terms.num_ranks - 1;
  const double piece = terms.bytes / terms.num_ranks;
  return terms.latency_of(1, others) + terms.spread(others * piece, piece);
}

}  // namespace dmlcomm::schedule
