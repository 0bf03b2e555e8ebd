// all_gather, BML: the broadcast of the BML all_reduce, level by level on all rails at once.
//
// Source, vocabulary and requirements: all_reduce_bml.h. Here the pieces are given: rank p has
// piece p, pieces may differ in length, and stream t moves the t-th of k parts of every piece.
//
// Steps: k, in the order of levels opposite to the aggregation's: a host sends every piece that it
// has of its set to each neighbour on the step's level. Pieces may be separate tensors, and go one
// by one, each as soon as it is there: N - 1 messages per stream. On the wire: (N - 1) / (k N) S
// bytes per rail, 1 / k of the least that one rail allows.
//
// Example, BCube(2, 2), stream 0 on host 0: sends its part of piece 0 to host 2 on rail 1, and gets
// that of piece 2; sends both to host 1 on rail 0, and gets those of 1 and 3.
#pragma once

#include <vector>

#include "schedule/algorithms/group.h"
#include "schedule/op_shape.h"
#include "schedule/price/cost_terms.h"
#include "schedule/schedule.h"
#include "schedule/schedule_builder.h"
#include "topology/grid.h"
#include "topology/topology.h"

namespace dmlcomm::schedule {

Schedule all_gather_bml(const OpShape& shape, const topology::Topology& topology);
double all_gather_bml_seconds(const CostTerms& terms);

// The same among a group, in which member h is host h of the grid and pieces[h] its piece; `own` is
// where this rank's is at the start. Copying it to its place among the pieces is left to the
// caller.
void add_all_gather_bml(ScheduleBuilder* builder, const Group& group, const topology::Grid& grid,
                        const Range& own, const std::vector<Range>& pieces, uint32_t element_bytes);

}  // namespace dmlcomm::schedule
