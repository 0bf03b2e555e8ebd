// scatter, direct: the root sends every rank its piece.
//
// Source: folklore. A rank other than the root knows its own count only.
//
// Steps: one round. On the wire: the root sends S (N - 1) / N bytes in N - 1
// messages, the least possible.
//
// Example, N = 3, root 1: 1 sends piece 2 to 2 and piece 0 to 0, and copies
// piece 1 to its own output.
#pragma once

#include "schedule/op_shape.h"
#include "schedule/price/cost_terms.h"
#include "schedule/schedule.h"

namespace dmlcomm::schedule {

Schedule scatter_direct(const OpShape& shape);
double scatter_direct_seconds(const CostTerms& terms);

}  // namespace dmlcomm::schedule
