#include "schedule/reduce_scatter_ring.h"

#include <algorithm>

#include "schedule/pieces.h"
#include "schedule/schedule_builder.h"

namespace dmlcomm::schedule {

Schedule reduce_scatter_ring(const OpShape& shape) {
  const uint32_t rank = shape.rank, num_ranks = shape.num_ranks;
  const uint32_t next = (rank + 1) % num_ranks, previous = (rank + num_ranks - 1) % num_ranks;
  const Pieces pieces(shape.counts);
  const uint64_t slot_length = *std::max_element(shape.counts.begin(), shape.counts.end());
  const Range result{BufferId::output, 0, shape.counts[rank]};
  const auto own_version = [&](uint32_t p) { return pieces.in(BufferId::input, p); };
  const auto slot = [&](uint32_t round, uint32_t p) {
    return Range{BufferId::scratch, round % 2 * slot_length, pieces.length(p)};
  };

  ScheduleBuilder builder(shape, "reduce_scatter_ring");
  if (num_ranks == 1) builder.copy(result, own_version(rank));
  if (num_ranks > 2) builder.use_scratch(2 * slot_length);
  for (uint32_t s = 0; s + 1 < num_ranks; ++s) {
    const uint32_t sent = (rank + 2 * num_ranks - 1 - s) % num_ranks;
    const uint32_t combined = (rank + 2 * num_ranks - 2 - s) % num_ranks;
    const bool is_last = s + 2 == num_ranks;  // then combined == rank
    builder.send(s == 0 ? own_version(sent) : slot(s - 1, sent), next);
    builder.recv_reduce(is_last ? result : slot(s, combined), own_version(combined), previous,
                        is_last);
  }
  return builder.build();
}

double reduce_scatter_ring_seconds(const CostTerms& terms) {
  const double others = terms.num_ranks - 1;
  const double moved = terms.bytes * others / terms.num_ranks;
  return others * terms.latency() + terms.next(moved, moved) + terms.gamma * moved;
}

}  // namespace dmlcomm::schedule
