#include "schedule/algorithms/all_gather_direct.h"

#include "schedule/algorithms/rotation.h"
#include "schedule/pieces.h"
#include "schedule/schedule_builder.h"

namespace dmlcomm::schedule {

Schedule all_gather_direct(const OpShape& shape) {
  const uint32_t rank = shape.rank;
  const Pieces pieces(shape.counts);
  const Range own{BufferId::input, 0, shape.counts[rank]};

  ScheduleBuilder builder(shape, "all_gather_direct");
  for (uint32_t peer : ranks_after(rank, shape.num_ranks)) builder.send(own, peer);
  builder.copy(pieces.in(BufferId::output, rank), own);
  for (uint32_t peer : ranks_before(rank, shape.num_ranks)) {
    builder.recv(pieces.in(BufferId::output, peer), peer);
  }
  return builder.build();
}

double all_gather_direct_seconds(const CostTerms& terms) {
  const double others = terms.num_ranks - 1;
  const double moved = terms.bytes * others / terms.num_ranks;
  return terms.latency(others) + terms.all(moved, moved);
}

}  // namespace dmlcomm::schedule
