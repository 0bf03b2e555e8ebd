#include "schedule/algorithms/reduce_scatter_direct.h"

#include "schedule/algorithms/rotation.h"
#include "schedule/pieces.h"
#include "schedule/schedule_builder.h"

namespace dmlcomm::schedule {

Schedule reduce_scatter_direct(const OpShape& shape) {
  const uint32_t rank = shape.rank;
  const Pieces pieces(shape.counts);
  const Range result{BufferId::output, 0, shape.counts[rank]};

  ScheduleBuilder builder(shape, "reduce_scatter_direct");
  if (shape.num_ranks == 1) builder.copy(result, pieces.in(BufferId::input, rank));
  for (uint32_t peer : ranks_after(rank, shape.num_ranks)) {
    builder.send(pieces.in(BufferId::input, peer), peer);
  }
  builder.recv_reduce_run(result, pieces.in(BufferId::input, rank),
                          ranks_before(rank, shape.num_ranks));
  return builder.build();
}

double reduce_scatter_direct_seconds(const CostTerms& terms) {
  const double others = terms.num_ranks - 1;
  const double moved = terms.bytes * others / terms.num_ranks;
  return terms.latency(others) + terms.all(moved, moved) + terms.gamma * moved;
}

}  // namespace dmlcomm::schedule
