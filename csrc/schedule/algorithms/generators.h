// The schedules of the table. <operation>_<algorithm>.cc has, for each row: source, steps, bytes on
// the wire and an example, the generator and the estimate.
//
// A row has the operation, the algorithm, its demand on the topology, where all ranks do the
// same at the same time, how its schedule grows with the group, and where rails show their rates
// (algorithms.h, algorithms.cc).
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "schedule/algorithms/group.h"
#include "schedule/op_shape.h"
#include "schedule/pieces.h"
#include "schedule/price/estimate.h"
#include "schedule/schedule.h"
#include "schedule/schedule_builder.h"
#include "topology/grid.h"
#include "topology/partition.h"
#include "topology/topology.h"

#define DMLCOMM_SCHEDULES(X)                                                     \
  X(all_reduce, direct, kNothing, always, kLong, always)                         \
  X(all_reduce, ring, kNothing, in_a_ring, kLong, on_single_ranks)               \
  X(all_reduce, recursive_doubling, kNothing, for_powers_of_two, kShort, always) \
  X(all_reduce, halving_doubling, kNothing, for_powers_of_two, kShort, always)   \
  X(all_reduce, tree, kNothing, never, kShort, never)                            \
  X(all_reduce, bml, kGrid, always, kShort, always)                              \
  X(all_reduce, bml_ring, kGrid, always, kShort, always)                         \
  X(all_reduce, hierarchical, kHosts, never, kShort, always)                     \
  X(all_reduce, leaders, kCores, never, kShort, always)                          \
  X(reduce, direct, kNothing, never, kLong, never)                               \
  X(reduce, tree, kNothing, never, kLong, never)                                 \
  X(broadcast, direct, kNothing, never, kLong, on_single_ranks)                  \
  X(broadcast, tree, kNothing, never, kLong, on_single_ranks)                    \
  X(broadcast, chain, kNothing, never, kLong, on_single_ranks)                   \
  X(broadcast, scatter_allgather, kNothing, never, kLong, on_single_ranks)       \
  X(broadcast, hierarchical, kHosts, never, kLong, always)                       \
  X(all_gather, direct, kNothing, always, kLong, always)                         \
  X(all_gather, ring, kNothing, in_a_ring, kLong, on_single_ranks)               \
  X(all_gather, bruck, kNothing, always, kLong, always)                          \
  X(all_gather, bml, kGrid, always, kLong, always)                               \
  X(all_gather, hierarchical, kHosts, never, kLong, always)                      \
  X(gather, direct, kNothing, never, kLong, never)                               \
  X(scatter, direct, kNothing, never, kLong, never)                              \
  X(reduce_scatter, direct, kNothing, always, kLong, always)                     \
  X(reduce_scatter, ring, kNothing, in_a_ring, kLong, on_single_ranks)           \
  X(reduce_scatter, halving, kNothing, for_powers_of_two, kLong, always)         \
  X(reduce_scatter, bml, kGrid, always, kLong, always)                           \
  X(reduce_scatter, hierarchical, kHosts, never, kLong, always)                  \
  X(all_to_all, pairwise, kNothing, always, kLong, always)                       \
  X(barrier, dissemination, kNothing, always, kShort, never)                     \
  X(barrier, levels, kGrid, always, kShort, never)

namespace dmlcomm::schedule {

#define DMLCOMM_DECLARE(op, algorithm, ...)                                            \
  Schedule op##_##algorithm(const OpShape& shape, const topology::Topology& topology); \
  double op##_##algorithm##_seconds(const EstimateTerms& terms);
DMLCOMM_SCHEDULES(DMLCOMM_DECLARE)
#undef DMLCOMM_DECLARE

// Messages of pipelined algorithms are cut in chunks, so that one is on the wire while another is
// combined and passed on. Smaller ones than this take longer to post than to send.
constexpr uint64_t kMinChunkBytes = 32 * 1024;

// Into how many chunks a message of `bytes` is cut, at most `most`.
inline uint32_t num_chunks(uint64_t bytes, uint32_t most) {
  return static_cast<uint32_t>(std::clamp<uint64_t>(bytes / kMinChunkBytes, 1, most));
}

// --- algorithms among a group of the ranks, of which the hierarchical ones are made; each adds its
// steps to a schedule

// all_reduce of `all`.
void add_all_reduce_ring(ScheduleBuilder* builder, const Group& group, const Range& all,
                         uint32_t element_bytes);

// all_reduce of `all`. Member h is host h of the grid of the topology.
void add_all_reduce_bml(ScheduleBuilder* builder, const Group& group,
                        const topology::Topology& topology, const Range& all,
                        uint32_t element_bytes, LevelExchange exchange = LevelExchange::ring);

// broadcast of `all` from member `root`.
void add_broadcast_chain(ScheduleBuilder* builder, const Group& group, uint32_t root,
                         const Range& all, uint32_t element_bytes);

// all_gather: pieces[i] is that of member i, and `own` is where this rank's is at the start. The
// caller copies it to its place among the pieces.
void add_all_gather_ring(ScheduleBuilder* builder, const Group& group, const Range& own,
                         const std::vector<Range>& pieces);

// The same. Member h is host h of the grid of the topology.
void add_all_gather_bml(ScheduleBuilder* builder, const Group& group,
                        const topology::Topology& topology, const Range& own,
                        const std::vector<Range>& pieces, uint32_t element_bytes);

// reduce_scatter: versions[i] is this rank's version of the piece of member i, and is preserved.
void add_reduce_scatter_ring(ScheduleBuilder* builder, const Group& group,
                             const std::vector<Range>& versions, const Range& result);

// The same. Member h is host h of the grid of the topology.
void add_reduce_scatter_bml(ScheduleBuilder* builder, const Group& group,
                            const topology::Topology& topology, const std::vector<Range>& versions,
                            const Range& result, uint32_t element_bytes);

}  // namespace dmlcomm::schedule
