// all_gather, direct: every rank sends its piece to every other rank.
//
// Source: folklore; the linear algorithm of MPI implementations, with the peers rotated so that in
// step i rank r sends to r + i and receives from r - i. Pieces may differ in length.
//
// Steps: one round. On the wire: each rank receives S (N - 1) / N bytes, the least
// possible, in N - 1 messages.
//
// Example, N = 3: rank 1 copies its input to piece 1 of the output, sends it to 2 and 0, and
// receives piece 0 from 0 and piece 2 from 2.
#include "schedule/algorithms/generators.h"

namespace dmlcomm::schedule {

Schedule all_gather_direct(const OpShape& shape, const topology::Topology&) {
  const uint32_t rank = shape.rank;
  const Pieces pieces(shape.counts);
  const Range own{BufferId::input, 0, shape.counts[rank]};

  ScheduleBuilder builder(shape);
  for (uint32_t peer : ranks_after(rank, shape.num_ranks)) builder.send(own, peer);
  builder.copy(pieces.in(BufferId::output, rank), own);
  for (uint32_t peer : ranks_before(rank, shape.num_ranks)) {
    builder.recv(pieces.in(BufferId::output, peer), peer);
  }
  return builder.build();
}

double all_gather_direct_seconds(const EstimateTerms& terms) {
  return terms.latency(terms.others()) + terms.all(terms.bytes_of_others());
}

}  // namespace dmlcomm::schedule
