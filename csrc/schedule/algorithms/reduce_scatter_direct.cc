// reduce_scatter, direct: every rank sends each other rank its piece, which combines what it gets.
//
// Source: Thakur, Rabenseifner, Gropp 2005 (pairwise exchange). Vocabulary: *piece* p
// is what rank p is to hold in the end; pieces may differ in length.
//
// Steps: one round; rank r sends piece p to p for all p, and combines its own version of piece r
// with the N - 1 others. On the wire: each rank sends S (N - 1) / N bytes, the least possible, in N
// - 1 messages.
//
// Example, N = 3: rank 1 sends piece 2 to 2 and piece 0 to 0, and computes output = ((1 + 0) + 2).
#include "schedule/algorithms/generators.h"

namespace dmlcomm::schedule {

Schedule reduce_scatter_direct(const OpShape& shape, const topology::Topology&) {
  const uint32_t rank = shape.rank;
  const Pieces pieces(shape.counts);
  const Range result{BufferId::output, 0, shape.counts[rank]};

  ScheduleBuilder builder(shape);
  if (shape.num_ranks == 1) builder.copy(result, pieces.in(BufferId::input, rank));
  for (uint32_t peer : ranks_after(rank, shape.num_ranks)) {
    builder.send(pieces.in(BufferId::input, peer), peer);
  }
  builder.recv_reduce_run(result, pieces.in(BufferId::input, rank),
                          ranks_before(rank, shape.num_ranks));
  return builder.build();
}

double reduce_scatter_direct_seconds(const EstimateTerms& terms) {
  const double moved = terms.bytes_of_others();
  return terms.latency(terms.others()) + terms.all(moved) + terms.gamma * moved;
}

}  // namespace dmlcomm::schedule
