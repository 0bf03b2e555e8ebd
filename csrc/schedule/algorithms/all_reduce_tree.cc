// all_reduce, tree: up a binomial tree to rank 0, and down again.
//
// Source: folklore (reduce followed by broadcast). See binomial_tree.h for the tree.
//
// Steps: a rank combines what its children send with its own vector, smallest subtree first, and
// sends the result to its parent; the sum comes back the same way: 2 ceil(log2 N) rounds. On the
// wire: 2 (N - 1) messages of S bytes in all, the fewest possible. Rank 0 computes every
// element, so all have identical bits.
//
// Example, N = 4: 1 sends to 0, 3 to 2; 2 sends (2 + 3) to 0, which has ((0 + 1) + (2 + 3)) and
// sends it to 2 and 1; 2 sends it to 3.
#include "schedule/algorithms/generators.h"

#include "schedule/algorithms/binomial_tree.h"

namespace dmlcomm::schedule {

Schedule all_reduce_tree(const OpShape& shape, const topology::Topology&) {
  const BinomialTree tree(shape.rank, shape.num_ranks, 0);
  const Range all{BufferId::output, 0, shape.counts[0]};

  ScheduleBuilder builder(shape);
  const std::vector<uint32_t> smallest_first(tree.children.rbegin(), tree.children.rend());
  builder.recv_reduce_run(all, all, smallest_first, tree.is_root);
  if (!tree.is_root) {
    builder.send(all, tree.parent);
    builder.recv(all, tree.parent);
  }
  for (uint32_t child : tree.children) builder.send(all, child);
  return builder.build();
}

double all_reduce_tree_seconds(const EstimateTerms& terms) {
  return reduce_tree_seconds(terms) + broadcast_tree_seconds(terms);
}

}  // namespace dmlcomm::schedule
