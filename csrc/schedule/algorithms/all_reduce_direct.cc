// all_reduce, direct: a reduce-scatter and an all-gather in which every pair of ranks talks.
//
// Source: Thakur, Rabenseifner, Gropp, "Optimization of Collective Communication
// Operations in MPICH", 2005, with the pairwise exchange in both phases; the P2P parameter
// server of data-parallel training is the same pattern. Vocabulary: the vector is cut into
// N *parts*; rank r owns part r.
//
// Steps: (1) every rank sends part p to rank p and combines the N - 1 versions of its own part with
// its own; (2) it sends the result to all others. Two rounds, whatever N. On the wire: each rank
// sends and receives 2 S (N - 1) / N bytes, which is the least possible, in 2 (N - 1) messages.
// Each element is combined by one rank, so all ranks have identical bits. Long vectors of ranks
// that talk over loopback go block by block (blocks.h), each in such rounds and messages.
//
// Example, N = 3: rank 1 sends part 2 to 2 and part 0 to 0; computes part 1 = ((1 + 0) + 2); sends
// it to 2 and 0; receives part 0 from 0 and part 2 from 2.
#include "schedule/algorithms/generators.h"

#include "schedule/algorithms/blocks.h"

namespace dmlcomm::schedule {
namespace {

Schedule whole_vector(const OpShape& shape) {
  const uint32_t rank = shape.rank;
  const Parts part({BufferId::output, 0, shape.counts[0]}, shape.num_ranks, shape.element_bytes);
  const auto after = ranks_after(rank, shape.num_ranks);
  const auto before = ranks_before(rank, shape.num_ranks);

  ScheduleBuilder builder(shape);
  for (uint32_t peer : after) builder.send(part(peer), peer);
  builder.recv_reduce_run(part(rank), part(rank), before);
  for (uint32_t peer : after) builder.send(part(rank), peer);
  for (uint32_t peer : before) builder.recv(part(peer), peer);
  return builder.build();
}

}  // namespace

Schedule all_reduce_direct(const OpShape& shape, const topology::Topology& topology) {
  return in_blocks(shape, topology, shape.num_ranks, whole_vector);
}

double all_reduce_direct_seconds(const EstimateTerms& terms) {
  const double moved = terms.bytes_of_others();
  return 2 * (terms.latency(terms.others()) + terms.all(moved)) + terms.gamma * moved;
}

}  // namespace dmlcomm::schedule
