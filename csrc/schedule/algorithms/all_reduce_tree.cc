#include "schedule/algorithms/all_reduce_tree.h"

#include <vector>

#include "schedule/algorithms/binomial_tree.h"
#include "schedule/algorithms/broadcast_tree.h"
#include "schedule/algorithms/reduce_tree.h"
#include "schedule/schedule_builder.h"

namespace dmlcomm::schedule {

Schedule all_reduce_tree(const OpShape& shape) {
  const BinomialTree tree(shape.rank, shape.num_ranks, 0);
  const Range all{BufferId::output, 0, shape.counts[0]};

  ScheduleBuilder builder(shape, "all_reduce_tree");
  const std::vector<uint32_t> smallest_first(tree.children.rbegin(), tree.children.rend());
  builder.recv_reduce_run(all, all, smallest_first, tree.is_root);
  if (!tree.is_root) {
    builder.send(all, tree.parent);
    builder.recv(all, tree.parent);
  }
  for (uint32_t child : tree.children) builder.send(all, child);
  return builder.build();
}

double all_reduce_tree_seconds(const CostTerms& terms) {
  return reduce_tree_seconds(terms) + broadcast_tree_seconds(terms);
}

}  // namespace dmlcomm::schedule
