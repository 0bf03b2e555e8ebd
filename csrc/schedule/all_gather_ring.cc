#include "schedule/all_gather_ring.h"

#include "schedule/pieces.h"
#include "schedule/schedule_builder.h"

namespace dmlcomm::schedule {

Schedule all_gather_ring(const OpShape& shape) {
  const uint32_t rank = shape.rank, num_ranks = shape.num_ranks;
  const uint32_t next = (rank + 1) % num_ranks, previous = (rank + num_ranks - 1) % num_ranks;
  const Pieces pieces(shape.counts);
  const Range own{BufferId::input, 0, shape.counts[rank]};
  const auto piece_before = [&](uint32_t back) {
    return pieces.in(BufferId::output, (rank + num_ranks - back) % num_ranks);
  };

  ScheduleBuilder builder(shape, "all_gather_ring");
  for (uint32_t s = 0; s + 1 < num_ranks; ++s) {
    builder.send(s == 0 ? own : piece_before(s), next);
    builder.recv(piece_before(s + 1), previous);
  }
  builder.copy(piece_before(0), own);
  return builder.build();
}

double all_gather_ring_seconds(const CostTerms& terms) {
  const double others = terms.num_ranks - 1;
  const double moved = terms.bytes * others / terms.num_ranks;
  return others * terms.latency() + terms.next(moved, moved);
}

}  // namespace dmlcomm::schedule
