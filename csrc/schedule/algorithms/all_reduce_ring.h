// all_reduce, ring: a reduce-scatter and an all-gather around a ring of neighbours.
//
// Source: Patarasuk, Yuan, "Bandwidth optimal all-reduce algorithms for clusters of
// workstations", 2009. Vocabulary: the vector is cut into N *parts*. Rank r sends to r + 1
// and receives from r - 1 only.
//
// Steps: N - 1 rounds in which part p travels from rank p to rank p - 1 and collects every
// rank's contribution on its way; then N - 1 rounds in which the finished parts travel once
// around. On the wire: each rank sends and receives 2 S (N - 1) / N bytes, the least
// possible, in 2 (N - 1) rounds of messages that wait for each other. Large parts go in two
// chunks, so that one is on the wire while the other is added up and passed on. Each element is
// finished by one rank, so all have identical bits.
//
// Example, N = 3: part 0 goes from rank 0 to 1 (1 + 0) to 2 (2 + (1 + 0)), which has
// finished it; then to 0 and 1.
#pragma once

#include "schedule/algorithms/group.h"
#include "schedule/op_shape.h"
#include "schedule/price/cost_terms.h"
#include "schedule/schedule.h"
#include "schedule/schedule_builder.h"

namespace dmlcomm::schedule {

Schedule all_reduce_ring(const OpShape& shape);
double all_reduce_ring_seconds(const CostTerms& terms);

// The same of `all` among a group.
void add_all_reduce_ring(ScheduleBuilder* builder, const Group& group, const Range& all,
                         uint32_t element_bytes);

}  // namespace dmlcomm::schedule
