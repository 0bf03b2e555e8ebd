// all_reduce, BML: aggregation level by level of a grid, and back, on all rails at once.
//
// Source: Wang, Li, Cheng, Geng, et al., "BML: A High-performance, Low-cost Gradient
// Synchronization Algorithm for DML Training", NeurIPS 2018, generalised from BCube(n, k) to grids
// whose levels differ in size. One rank per host; a host's number has one digit per level, and
// rail l leads to its neighbours on level l (grid.h).
//
// Vocabulary: k levels; *stream* t of k has 1/k of the vector, in N *pieces*, each owned by one
// host; level, step, set and chunk as in bml_stream.h.
//
// Steps, of each stream: k steps of aggregation; in each a host sends every neighbour on the step's
// level that part of its set for which the neighbour is responsible from now on, and combines with
// its own what the neighbours send it. Then it has its piece complete. k steps of broadcast go the
// same way back: each sends its set, complete, to its neighbours, and has theirs after it.
// 2 sum(n_l - 1) messages per stream, more where large ones go in chunks.
//
// Cost: step w moves (n - 1) / n of a set of S / (k n^w) bytes on one rail, so each stage takes
// (N - 1) / (k N) of the time T_F in which one rail sends S: GST = 2 (N - 1) / (k N) T_F, 1 / k of
// the least that one rail allows, plus 2 k rounds of latency. Each element is finished by one host,
// and combined in a fixed order, so all ranks have identical bits.
//
// Example, BCube(2, 2), stream 0 on host 0 (digits 0, 0): sends the second half of its share to
// host 1 on rail 0, and combines the first; sends the second quarter to host 2 on rail 1, and
// finishes the first; then gets the second quarter from 2, and the second half from 1. Stream 1
// does the same with the levels, hence the rails, exchanged.
//
// all_reduce_bml_ring is the same with one difference: the n hosts at a switch do not send to each
// other all at once, but around a ring, in n - 1 rounds. The bytes on each rail, hence GST, are the
// same, with more rounds of latency; but no two hosts ever send to the same port of a switch, where
// their packets would be lost. 16 hosts, BCube(4, 2) at 200 Mb/s and MTU 9000: 12.5 MB take 1.069
// times the GST of above instead of 1.097; of 100 MB both take 1.05 times it.
#pragma once

#include "schedule/algorithms/group.h"
#include "schedule/op_shape.h"
#include "schedule/price/bml_cost.h"
#include "schedule/price/cost_terms.h"
#include "schedule/schedule.h"
#include "schedule/schedule_builder.h"
#include "topology/grid.h"
#include "topology/topology.h"

namespace dmlcomm::schedule {

Schedule all_reduce_bml(const OpShape& shape, const topology::Topology& topology);
double all_reduce_bml_seconds(const CostTerms& terms);

Schedule all_reduce_bml_ring(const OpShape& shape, const topology::Topology& topology);
double all_reduce_bml_ring_seconds(const CostTerms& terms);

// The same of `all` among a group, in which member h is host h of the grid.
void add_all_reduce_bml(ScheduleBuilder* builder, const Group& group, const topology::Grid& grid,
                        const Range& all, uint32_t element_bytes,
                        LevelExchange exchange = LevelExchange::ring);

}  // namespace dmlcomm::schedule
