// broadcast, direct: the root sends to everyone.
//
// Source: folklore. Best where sending is free (single copy in shared memory: all receivers read
// the root's memory at the same time); the baseline elsewhere.
//
// Steps: one round. On the wire: the root sends S (N - 1) bytes in N - 1 messages.
//
// Example, N = 3, root 1: 1 sends to 2 and 0.
#pragma once

#include "schedule/op_shape.h"
#include "schedule/price/cost_terms.h"
#include "schedule/schedule.h"

namespace dmlcomm::schedule {

Schedule broadcast_direct(const OpShape& shape);
double broadcast_direct_seconds(const CostTerms& terms);

}  // namespace dmlcomm::schedule
