// gather, direct: every rank sends its piece to the root.
//
// Source: folklore. A rank other than the root knows its own count only.
//
// Steps: one round. On the wire: the root receives S (N - 1) / N bytes in N - 1
// messages, the least possible.
//
// Example, N = 3, root 1: 0 and 2 send to 1, which copies its own input to piece 1 of the output.
#pragma once

#include "schedule/op_shape.h"
#include "schedule/price/cost_terms.h"
#include "schedule/schedule.h"

namespace dmlcomm::schedule {

Schedule gather_direct(const OpShape& shape);
double gather_direct_seconds(const CostTerms& terms);

}  // namespace dmlcomm::schedule
