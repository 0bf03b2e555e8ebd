// all_gather, ring: pieces travel once around a ring of neighbours.
//
// Source: folklore; Thakur, Rabenseifner, Gropp 2005. Pieces may differ in length.
//
// Steps: N - 1 rounds; in round s rank r sends piece r - s to r + 1 and receives piece
// r - s - 1 from r - 1. On the wire: each rank receives S (N - 1) / N bytes, the least
// possible, and talks to neighbours only.
//
// Example, N = 3: rank 1 sends piece 1 to 2 and receives piece 0 from 0; then sends piece 0 to
// 2 and receives piece 2 from 0.
#include "schedule/algorithms/generators.h"

namespace dmlcomm::schedule {

void add_all_gather_ring(ScheduleBuilder* builder, const Group& group, const Range& own,
                         const std::vector<Range>& pieces) {
  const uint32_t index = group.index, size = group.size();
  const auto piece_before = [&](uint32_t back) { return pieces[(index + size - back) % size]; };
  for (uint32_t s = 0; s + 1 < size; ++s) {
    builder->send(s == 0 ? own : piece_before(s), group.next());
    builder->recv(piece_before(s + 1), group.previous());
  }
}

Schedule all_gather_ring(const OpShape& shape, const topology::Topology&) {
  const Pieces all(shape.counts);
  std::vector<Range> pieces;
  for (uint32_t p = 0; p < shape.num_ranks; ++p) pieces.push_back(all.in(BufferId::output, p));
  const Range own{BufferId::input, 0, shape.counts[shape.rank]};
  ScheduleBuilder builder(shape);
  add_all_gather_ring(&builder, group_of_all(shape.rank, shape.num_ranks), own, pieces);
  builder.copy(pieces[shape.rank], own);
  return builder.build();
}

double all_gather_ring_seconds(const EstimateTerms& terms) {
  return terms.others() * terms.latency() + terms.next(terms.bytes_of_others());
}

}  // namespace dmlcomm::schedule
