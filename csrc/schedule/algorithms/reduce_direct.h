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
#pragma once

#include "schedule/op_shape.h"
#include "schedule/price/cost_terms.h"
#include "schedule/schedule.h"

namespace dmlcomm::schedule {

Schedule reduce_direct(const OpShape& shape);
double reduce_direct_seconds(const CostTerms& terms);

}  // namespace dmlcomm::schedule
