// Algorithms among a group of the ranks, of which the hierarchical ones are made. Each stands in
// <operation>_<algorithm>.cc beside the generator for all ranks, and adds its steps to a schedule.
#pragma once

#include <cstdint>
#include <vector>

#include "schedule/algorithms/group.h"
#include "schedule/price/estimate.h"
#include "schedule/schedule.h"
#include "schedule/schedule_builder.h"
#include "topology/grid.h"

namespace dmlcomm::schedule {

// all_reduce of `all`.
void add_all_reduce_ring(ScheduleBuilder* builder, const Group& group, const Range& all,
                         uint32_t element_bytes);

// all_reduce of `all`. Member h is host h of the grid.
void add_all_reduce_bml(ScheduleBuilder* builder, const Group& group, const topology::Grid& grid,
                        const Range& all, uint32_t element_bytes,
                        LevelExchange exchange = LevelExchange::ring);

// broadcast of `all` from member `root`.
void add_broadcast_chain(ScheduleBuilder* builder, const Group& group, uint32_t root,
                         const Range& all, uint32_t element_bytes);

// all_gather: pieces[i] is that of member i, and `own` is where this rank's is at the start. The
// caller copies it to its place among the pieces.
void add_all_gather_ring(ScheduleBuilder* builder, const Group& group, const Range& own,
                         const std::vector<Range>& pieces);

// The same. Member h is host h of the grid.
void add_all_gather_bml(ScheduleBuilder* builder, const Group& group, const topology::Grid& grid,
                        const Range& own, const std::vector<Range>& pieces, uint32_t element_bytes);

// reduce_scatter: versions[i] is this rank's version of the piece of member i, and is preserved.
void add_reduce_scatter_ring(ScheduleBuilder* builder, const Group& group,
                             const std::vector<Range>& versions, const Range& result);

// The same. Member h is host h of the grid.
void add_reduce_scatter_bml(ScheduleBuilder* builder, const Group& group,
                            const topology::Grid& grid, const std::vector<Range>& versions,
                            const Range& result, uint32_t element_bytes);

}  // namespace dmlcomm::schedule
