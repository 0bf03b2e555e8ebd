// broadcast, chain: segments follow each other from rank to rank.
//
// Source: folklore; the linear pipeline of MPI implementations. Vocabulary: the vector is cut into
// K *segments*; ranks are ordered root, root + 1, ..., root - 1 (mod N).
//
// Steps: each rank receives segment after segment from its predecessor and passes each on as soon
// as it has it: N - 2 + K rounds of S / K bytes. On the wire: every rank sends and receives S bytes
// at most, the least possible; time tends to S beta when K is large against N.
//
// Example, N = 3, K = 2: 0 sends segment 0 to 1; then segment 1 to 1 while 1 sends segment 0 to
// 2; then 1 sends segment 1 to 2.
#pragma once

#include "schedule/algorithms/group.h"
#include "schedule/op_shape.h"
#include "schedule/price/cost_terms.h"
#include "schedule/schedule.h"
#include "schedule/schedule_builder.h"

namespace dmlcomm::schedule {

Schedule broadcast_chain(const OpShape& shape);
double broadcast_chain_seconds(const CostTerms& terms);

// The same of `all` among a group, from its member `root`.
void add_broadcast_chain(ScheduleBuilder* builder, const Group& group, uint32_t root,
                         const Range& all, uint32_t element_bytes);

}  // namespace dmlcomm::schedule
