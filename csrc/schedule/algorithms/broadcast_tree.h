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
#pragma once

#include "schedule/op_shape.h"
#include "schedule/price/cost_terms.h"
#include "schedule/schedule.h"

namespace dmlcomm::schedule {

Schedule broadcast_tree(const OpShape& shape);
double broadcast_tree_seconds(const CostTerms& terms);

}  // namespace dmlcomm::schedule
