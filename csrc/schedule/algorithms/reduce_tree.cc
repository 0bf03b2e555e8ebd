// reduce, tree: up a binomial tree to the root.
//
// Source: folklore; Thakur, Rabenseifner, Gropp 2005. See binomial_tree.h for the
// tree.
//
// Steps: a rank combines what its children send with its own input, smallest subtree first (the
// root in its output, the others in scratch), and sends the result to its parent: ceil(log2 N)
// rounds. On the wire: N - 1 messages of S bytes in all, the fewest possible.
//
// Example, N = 4, root 0: 1 sends to 0, 3 to 2; 2 sends (2 + 3) to 0.
#include "schedule/algorithms/generators.h"

#include "schedule/algorithms/binomial_tree.h"

namespace dmlcomm::schedule {

Schedule reduce_tree(const OpShape& shape, const topology::Topology&) {
  const BinomialTree tree(shape.rank, shape.num_ranks, shape.root);
  const Range input{BufferId::input, 0, shape.counts[0]};
  const Range result{tree.is_root ? BufferId::output : BufferId::scratch, 0, shape.counts[0]};

  ScheduleBuilder builder(shape);
  if (shape.num_ranks == 1) builder.copy(result, input);
  const std::vector<uint32_t> smallest_first(tree.children.rbegin(), tree.children.rend());
  builder.recv_reduce_run(result, input, smallest_first, tree.is_root);
  if (tree.is_root) return builder.build();
  const bool is_leaf = tree.children.empty();
  if (!is_leaf) builder.use_scratch(shape.counts[0]);
  builder.send(is_leaf ? input : result, tree.parent);
  return builder.build();
}

// A rank of height h has received from its children of heights 0 ... h - 2 when the one of height h
// - 1 is ready, so each level adds one message and one combination.
double reduce_tree_seconds(const EstimateTerms& terms) {
  const double height = ceil_log2(terms.num_ranks);
  return terms.tree(height * terms.far_alone(terms.bytes, terms.bytes)) +
         height * terms.gamma * terms.bytes;
}

}  // namespace dmlcomm::schedule
