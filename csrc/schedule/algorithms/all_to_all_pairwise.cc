#include "schedule/algorithms/all_to_all_pairwise.h"

#include "schedule/pieces.h"
#include "schedule/schedule_builder.h"

namespace dmlcomm::schedule {

Schedule all_to_all_pairwise(const OpShape& shape) {
  const uint32_t rank = shape.rank;
  const Pieces sent(shape.counts);
  const Pieces received(shape.recv_counts);

  ScheduleBuilder builder(shape, "all_to_all_pairwise");
  for (uint32_t i = 1; i < shape.num_ranks; ++i) {
    const uint32_t to = (rank + i) % shape.num_ranks;
    const uint32_t from = (rank + shape.num_ranks - i) % shape.num_ranks;
    builder.send(sent.in(BufferId::input, to), to);
    builder.recv(received.in(BufferId::output, from), from);
  }
  builder.copy(received.in(BufferId::output, rank), sent.in(BufferId::input, rank));
  return builder.build();
}

double all_to_all_pairwise_seconds(const CostTerms& terms) {
  const double others = terms.num_ranks - 1;
  const double moved = terms.bytes * others / terms.num_ranks;
  return terms.latency(others) + terms.all(moved, moved);
}

}  // namespace dmlcomm::schedule
