// reduce_scatter, ring: each piece travels around a ring of neighbours and collects contributions.
//
// Source: the first half of the ring all_reduce (Patarasuk, Yuan 2009).
// Pieces may differ in length.
//
// Steps: N - 1 rounds; piece p starts at rank p + 1 and ends at rank p. In round s rank r sends
// piece r - 1 - s to r + 1, and combines piece r - 2 - s from r - 1 with its own. On the wire: each
// rank sends S (N - 1) / N bytes, the least possible, and talks to neighbours only.
//
// Memory: the input is preserved, so partial sums lie in scratch, in two *slots* that take turns:
// one is sent while the other is filled.
//
// Example, N = 3: piece 0 goes from 1 to 2 (2 + 1) to 0 (0 + (2 + 1)).
#include "schedule/algorithms/generators.h"

#include <algorithm>

namespace dmlcomm::schedule {

void add_reduce_scatter_ring(ScheduleBuilder* builder, const Group& group,
                             const std::vector<Range>& versions, const Range& result) {
  const uint32_t index = group.index, size = group.size();
  uint64_t slot_length = 0;
  for (const Range& version : versions) slot_length = std::max(slot_length, version.length);
  const uint64_t slots = size > 2 ? builder->use_scratch(2 * slot_length) : 0;
  const auto slot = [&](uint32_t round, uint32_t p) {
    return Range{BufferId::scratch, slots + round % 2 * slot_length, versions[p].length};
  };
  if (size == 1) builder->copy(result, versions[index]);
  for (uint32_t s = 0; s + 1 < size; ++s) {
    const uint32_t sent = (index + 2 * size - 1 - s) % size;
    const uint32_t combined = (index + 2 * size - 2 - s) % size;
    const bool is_last = s + 2 == size;  // then combined == index
    builder->send(s == 0 ? versions[sent] : slot(s - 1, sent), group.next());
    builder->recv_reduce(is_last ? result : slot(s, combined), versions[combined], group.previous(),
                         is_last);
  }
}

Schedule reduce_scatter_ring(const OpShape& shape, const topology::Topology&) {
  const Pieces pieces(shape.counts);
  std::vector<Range> versions;
  for (uint32_t p = 0; p < shape.num_ranks; ++p) versions.push_back(pieces.in(BufferId::input, p));
  ScheduleBuilder builder(shape);
  add_reduce_scatter_ring(&builder, group_of_all(shape.rank, shape.num_ranks), versions,
                          {BufferId::output, 0, shape.counts[shape.rank]});
  return builder.build();
}

double reduce_scatter_ring_seconds(const EstimateTerms& terms) {
  const double moved = terms.bytes_of_others();
  return terms.others() * terms.latency() + terms.next(moved) + terms.gamma * moved;
}

}  // namespace dmlcomm::schedule
