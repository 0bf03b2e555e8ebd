// all_gather, ring: pieces travel once around a ring of neighbours.
//
// Source: folklore; Thakur, Rabenseifner, Gropp 2005. Pieces may differ in length.
//
// Steps: N - 1 rounds; in round s rank r sends piece r - s to r + 1 and receives piece
// r - s - 1 from r - 1. On the wire: each rank receives S (N - 1) / N bytes, the least
// possible, and talks to neighbours only.
//
// Example, N = 3: rank 1 sends piece 1 to 2 and receives piece 0 from 0; then sends piece 0 to
// 2 and receives piece 2 from 0.
#pragma once

#include <vector>

#include "schedule/algorithms/group.h"
#include "schedule/op_shape.h"
#include "schedule/price/cost_terms.h"
#include "schedule/schedule.h"
#include "schedule/schedule_builder.h"

namespace dmlcomm::schedule {

Schedule all_gather_ring(const OpShape& shape);
double all_gather_ring_seconds(const CostTerms& terms);

// The same among a group: pieces[i] is that of member i, and `own` is where this rank's is at the
// start. Copying it to its place among the pieces is left to the caller.
void add_all_gather_ring(ScheduleBuilder* builder, const Group& group, const Range& own,
                         const std::vector<Range>& pieces);

}  // namespace dmlcomm::schedule
