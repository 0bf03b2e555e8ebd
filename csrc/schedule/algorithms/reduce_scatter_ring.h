// reduce_scatter, ring: each piece travels around a ring of neighbours and collects contributions.
//
// Source: the first half of the ring all_reduce (Patarasuk, Yuan 2009).
// Pieces may differ in length.
//
// Steps: N - 1 rounds; piece p starts at rank p + 1 and ends at rank p. In round s rank r sends
// piece r - 1 - s to r + 1, and combines piece r - 2 - s from r - 1 with its own. On the wire: each
// rank sends S (N - 1) / N bytes, the least possible, and talks to neighbours only.
//
// Memory: the input is preserved, so partial sums lie in scratch, in two *slots* that take turns:
// one is sent while the other is filled.
//
// Example, N = 3: piece 0 goes from 1 to 2 (2 + 1) to 0 (0 + (2 + 1)).
#pragma once

#include <vector>

#include "schedule/algorithms/group.h"
#include "schedule/op_shape.h"
#include "schedule/price/cost_terms.h"
#include "schedule/schedule.h"
#include "schedule/schedule_builder.h"

namespace dmlcomm::schedule {

Schedule reduce_scatter_ring(const OpShape& shape);
double reduce_scatter_ring_seconds(const CostTerms& terms);

// The same among a group: versions[i] is this rank's version of the piece of member i, and is
// preserved.
void add_reduce_scatter_ring(ScheduleBuilder* builder, const Group& group,
                             const std::vector<Range>& versions, const Range& result);

}  // namespace dmlcomm::schedule
