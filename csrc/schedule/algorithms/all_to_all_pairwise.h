// all_to_all, pairwise: in step i rank r sends to r + i and receives from r - i.
//
// Source: Thakur, Rabenseifner, Gropp 2005 (pairwise exchange). A rank knows only its
// own row of counts (what it sends to each) and column (what it receives from each).
//
// Steps: N - 1 disjoint pairings, all posted at once; their order keeps any rank from being
// everyone's target. On the wire: each rank sends its input without its own piece, once.
//
// Example, N = 4: rank 1 sends to 2, 3, 0 and receives from 0, 3, 2, in these orders.
#pragma once

#include "schedule/op_shape.h"
#include "schedule/price/cost_terms.h"
#include "schedule/schedule.h"

namespace dmlcomm::schedule {

Schedule all_to_all_pairwise(const OpShape& shape);
double all_to_all_pairwise_seconds(const CostTerms& terms);

}  // namespace dmlcomm::schedule
