// all_to_all, pairwise: in step i rank r sends to r + i and receives from r - i.
//
// Source: Thakur, Rabenseifner, Gropp 2005 (pairwise exchange). A rank knows only its
// own row of counts (what it sends to each) and column (what it receives from each).
//
// Steps: N - 1 disjoint pairings, all posted at once; their order keeps any rank from being
// everyone's target. On the wire: each rank sends its input without its own piece, once.
//
// Example, N = 4: rank 1 sends to 2, 3, 0 and receives from 0, 3, 2, in these orders.
#include "schedule/algorithms/generators.h"

namespace dmlcomm::schedule {

Schedule all_to_all_pairwise(const OpShape& shape, const topology::Topology&) {
  const uint32_t rank = shape.rank;
  const Pieces sent(shape.counts);
  const Pieces received(shape.recv_counts);

  ScheduleBuilder builder(shape);
  for (uint32_t i = 1; i < shape.num_ranks; ++i) {
    const uint32_t to = (rank + i) % shape.num_ranks;
    const uint32_t from = (rank + shape.num_ranks - i) % shape.num_ranks;
    builder.send(sent.in(BufferId::input, to), to);
    builder.recv(received.in(BufferId::output, from), from);
  }
  builder.copy(received.in(BufferId::output, rank), sent.in(BufferId::input, rank));
  return builder.build();
}

double all_to_all_pairwise_seconds(const EstimateTerms& terms) {
  return terms.latency(terms.others()) + terms.all(terms.bytes_of_others());
}

}  // namespace dmlcomm::schedule
