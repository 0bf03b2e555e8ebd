// barrier, levels: dissemination (barrier_dissemination.cc) on each level of a grid, one after the
// other. Signals go to neighbours only, so no host relays.
//
// Invariant: before level l a rank has heard from all hosts that differ from its own on levels
// below l only. Its neighbours on level l have heard from as many others, and n hosts of a level
// hear from each other in ceil(log2 n) rounds. On the wire: for each level N ceil(log2 n) messages
// without payload. There are as many rounds as without levels if all sizes are powers of two.
//
// Example, sizes {3, 2}, host 0: 0 to 1, then 0 to 2 (level 0), then 0 to 3 (level 1).
#include "schedule/algorithms/generators.h"

namespace dmlcomm::schedule {

Schedule barrier_levels(const OpShape& shape, const topology::Topology& topology) {
  const topology::Grid grid(topology.grid);
  const Group group = group_across_hosts(topology, shape.rank);
  const uint32_t host = topology.host_of_rank[shape.rank];
  ScheduleBuilder builder(shape);
  for (uint32_t level = 0; level < grid.num_levels(); ++level) {
    const uint32_t size = grid.size(level);
    const auto rank_at = [&](uint64_t steps) {
      const auto digit = static_cast<uint32_t>((grid.digit(host, level) + steps) % size);
      return group.ranks[grid.with_digit(host, level, digit)];
    };
    for (uint64_t distance = 1; distance < size; distance *= 2) {
      builder.signal(rank_at(distance));
      builder.await_signal(rank_at(size - distance));
    }
  }
  return builder.build();
}

double barrier_levels_seconds(const EstimateTerms& terms) {
  double rounds = 0;
  for (const uint32_t size : terms.grid) rounds += ceil_log2(size);
  return rounds * (terms.hop_alpha + terms.overhead);
}

}  // namespace dmlcomm::schedule
