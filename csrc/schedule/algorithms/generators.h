// The schedules of the table. <operation>_<algorithm>.cc has, for each row: source, steps, bytes on
// the wire and an example, the generator and the estimate.
//
// A row has the operation, the algorithm, its demand on the topology, where all ranks do the
// same at the same time, and how its schedule grows with the group (algorithms.h, algorithms.cc).
#pragma once

#include "schedule/op_shape.h"
#include "schedule/price/estimate.h"
#include "schedule/schedule.h"
#include "topology/topology.h"

#define DMLCOMM_SCHEDULES(X)                                             \
  X(all_reduce, direct, kNothing, always, kLong)                         \
  X(all_reduce, ring, kNothing, in_a_ring, kLong)                        \
  X(all_reduce, recursive_doubling, kNothing, for_powers_of_two, kShort) \
  X(all_reduce, halving_doubling, kNothing, for_powers_of_two, kShort)   \
  X(all_reduce, tree, kNothing, never, kShort)                           \
  X(all_reduce, bml, kGrid, always, kShort)                              \
  X(all_reduce, bml_ring, kGrid, always, kShort)                         \
  X(all_reduce, hierarchical, kHosts, never, kShort)                     \
  X(all_reduce, leaders, kCores, never, kShort)                          \
  X(reduce, direct, kNothing, never, kLong)                              \
  X(reduce, tree, kNothing, never, kLong)                                \
  X(broadcast, direct, kNothing, never, kLong)                           \
  X(broadcast, tree, kNothing, never, kLong)                             \
  X(broadcast, chain, kNothing, never, kLong)                            \
  X(broadcast, scatter_allgather, kNothing, never, kLong)                \
  X(broadcast, hierarchical, kHosts, never, kLong)                       \
  X(all_gather, direct, kNothing, always, kLong)                         \
  X(all_gather, ring, kNothing, in_a_ring, kLong)                        \
  X(all_gather, bruck, kNothing, always, kLong)                          \
  X(all_gather, bml, kGrid, always, kLong)                               \
  X(all_gather, hierarchical, kHosts, never, kLong)                      \
  X(gather, direct, kNothing, never, kLong)                              \
  X(scatter, direct, kNothing, never, kLong)                             \
  X(reduce_scatter, direct, kNothing, always, kLong)                     \
  X(reduce_scatter, ring, kNothing, in_a_ring, kLong)                    \
  X(reduce_scatter, halving, kNothing, for_powers_of_two, kLong)         \
  X(reduce_scatter, bml, kGrid, always, kLong)                           \
  X(reduce_scatter, hierarchical, kHosts, never, kLong)                  \
  X(all_to_all, pairwise, kNothing, always, kLong)                       \
  X(barrier, dissemination, kNothing, always, kShort)

namespace dmlcomm::schedule {

#define DMLCOMM_DECLARE(op, algorithm, ...)                                            \
  Schedule op##_##algorithm(const OpShape& shape, const topology::Topology& topology); \
  double op##_##algorithm##_seconds(const EstimateTerms& terms);
DMLCOMM_SCHEDULES(DMLCOMM_DECLARE)
#undef DMLCOMM_DECLARE

}  // namespace dmlcomm::schedule
