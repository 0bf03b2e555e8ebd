// reduce, direct: a reduce-scatter and a gather to the root, in which every pair of ranks talks.
//
// Source: Rabenseifner's reduce (Thakur, Rabenseifner, Gropp 2005) with the pairwise
// exchange. Vocabulary: the vector is cut into N *parts*; rank r combines part r.
//
// Steps: (1) every rank sends part p to p and combines its own part, the root in its output,
// the others in scratch; (2) the others send their result to the root. On the wire:
// S (N - 1) / N bytes sent per rank in the first round, S / N in the second, S (N - 1) / N
// received by the root in each.
//
// Example, N = 3, root 1: rank 2 sends part 0 to 0 and part 1 to 1, computes part 2 =
// ((2 + 1) + 0) in scratch and sends it to 1.
#include "schedule/algorithms/generators.h"

namespace dmlcomm::schedule {

Schedule reduce_direct(const OpShape& shape, const topology::Topology&) {
  const uint32_t rank = shape.rank;
  const bool is_root = rank == shape.root;
  const uint64_t count = shape.counts[0];
  const Parts input({BufferId::input, 0, count}, shape.num_ranks, shape.element_bytes);
  const Parts output({BufferId::output, 0, count}, shape.num_ranks, shape.element_bytes);
  const auto before = ranks_before(rank, shape.num_ranks);
  const Range own = input(rank);
  const Range result = is_root ? output(rank) : Range{BufferId::scratch, 0, own.length};

  ScheduleBuilder builder(shape);
  if (!is_root) builder.use_scratch(own.length);
  if (shape.num_ranks == 1) builder.copy(result, own);
  for (uint32_t peer : ranks_after(rank, shape.num_ranks)) builder.send(input(peer), peer);
  builder.recv_reduce_run(result, own, before);
  if (!is_root) {
    builder.send(result, shape.root);
    return builder.build();
  }
  for (uint32_t peer : before) builder.recv(output(peer), peer);
  return builder.build();
}

double reduce_direct_seconds(const EstimateTerms& terms) {
  const double moved = terms.bytes_of_others();
  return terms.latency(terms.others()) + terms.latency() + 2 * terms.all(moved) +
         terms.gamma * moved;
}

}  // namespace dmlcomm::schedule
