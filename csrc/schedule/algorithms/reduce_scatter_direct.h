// reduce_scatter, direct: every rank sends each other rank its piece, which combines what it gets.
//
// Source: Thakur, Rabenseifner, Gropp 2005 (pairwise exchange). Vocabulary: *piece* p
// is what rank p is to hold in the end; pieces may differ in length.
//
// Steps: one round; rank r sends piece p to p for all p, and combines its own version of piece r
// with the N - 1 others. On the wire: each rank sends S (N - 1) / N bytes, the least possible, in N
// - 1 messages.
//
// Example, N = 3: rank 1 sends piece 2 to 2 and piece 0 to 0, and computes output = ((1 + 0) + 2).
#pragma once

#include "schedule/op_shape.h"
#include "schedule/price/cost_terms.h"
#include "schedule/schedule.h"

namespace dmlcomm::schedule {

Schedule reduce_scatter_direct(const OpShape& shape);
double reduce_scatter_direct_seconds(const CostTerms& terms);

}  // namespace dmlcomm::schedule
