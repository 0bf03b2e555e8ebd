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
#pragma once

#include "schedule/op_shape.h"
#include "schedule/price/cost_terms.h"
#include "schedule/schedule.h"

namespace dmlcomm::schedule {

Schedule reduce_tree(const OpShape& shape);
double reduce_tree_seconds(const CostTerms& terms);

}  // namespace dmlcomm::schedule
