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
#pragma once

#include "schedule/op_shape.h"
#include "schedule/price/cost_terms.h"
#include "schedule/schedule.h"

namespace dmlcomm::schedule {

Schedule all_reduce_tree(const OpShape& shape);
double all_reduce_tree_seconds(const CostTerms& terms);

}  // namespace dmlcomm::schedule
