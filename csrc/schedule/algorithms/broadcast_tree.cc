// broadcast, tree: down a binomial tree.
//
// Source: folklore; Thakur, Rabenseifner, Gropp 2005. See binomial_tree.h for the
// tree.
//
// Steps: a rank receives the vector from its parent, then sends it to all its children: ceil(log2
// N) rounds. On the wire: S bytes to each rank, N - 1 messages in all, but up to log2 N of them
// leave the root, and a rank passes nothing on before it has everything: good for small vectors.
//
// Example, N = 4, root 0: 0 sends to 2 and 1; 2 sends to 3.
#include "schedule/algorithms/generators.h"

#include "schedule/algorithms/binomial_tree.h"

namespace dmlcomm::schedule {

Schedule broadcast_tree(const OpShape& shape, const topology::Topology&) {
  const BinomialTree tree(shape.rank, shape.num_ranks, shape.root);
  const Range all{BufferId::output, 0, shape.counts[0]};

  ScheduleBuilder builder(shape);
  if (!tree.is_root) builder.recv(all, tree.parent);
  for (uint32_t child : tree.children) builder.send(all, child);
  return builder.build();
}

// The longest path takes the first child at each level. A rank at height h sends h messages at
// once, of which each gets 1/h of the sender's bandwidth: 1 + 2 + ... + height vectors, one after
// the other. Where sending is free, each level costs one vector.
double broadcast_tree_seconds(const EstimateTerms& terms) {
  const double height = ceil_log2(terms.num_ranks);
  const double vectors = terms.sender_is_free ? height : height * (height + 1) / 2;
  return terms.tree(terms.far_alone(vectors * terms.bytes, vectors * terms.bytes));
}

}  // namespace dmlcomm::schedule
