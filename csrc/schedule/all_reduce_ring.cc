#include "schedule/all_reduce_ring.h"

#include "schedule/schedule_builder.h"
#include "topology/partition.h"

namespace dmlcomm::schedule {

Schedule all_reduce_ring(const OpShape& shape) {
  const uint32_t rank = shape.rank, num_ranks = shape.num_ranks;
  const uint32_t next = (rank + 1) % num_ranks, previous = (rank + num_ranks - 1) % num_ranks;
  const topology::Partition parts(shape.counts[0], num_ranks, shape.element_bytes);
  // Part r - back (mod N), for back from -1 to N.
  const auto part_before = [&](uint32_t back) {
    const uint32_t p = (rank + 2 * num_ranks - back) % num_ranks;
    return Range{BufferId::output, parts.begin(p), parts.length(p)};
  };

  ScheduleBuilder builder(shape, "all_reduce_ring");
  // In round s the part that rank r passes on is r - s, which it completed in round s - 1; the part
  // it combines is the one its predecessor passes on, r - 1 - s. It finishes r + 1.
  for (uint32_t s = 0; s + 1 < num_ranks; ++s) {
    const Range combined = part_before(s + 1);
    builder.send(part_before(s), next);
    builder.recv_reduce(combined, combined, previous, s + 2 == num_ranks);
  }
  // The same, one part on: it starts by passing on r + 1.
  for (uint32_t s = 0; s + 1 < num_ranks; ++s) {
    builder.send(part_before(s + num_ranks - 1), next);
    builder.recv(part_before(s), previous);
  }
  return builder.build();
}

double all_reduce_ring_seconds(const CostTerms& terms) {
  const double others = terms.num_ranks - 1;
  const double moved = terms.bytes * others / terms.num_ranks;
  return 2 * others * terms.latency() + terms.next(2 * moved, 2 * moved) + terms.gamma * moved;
}

}  // namespace dmlcomm::schedule
