// reduce_scatter, BML: the aggregation of the BML all_reduce, level by level on all rails at once.
//
// Source, vocabulary and requirements: all_reduce_bml.h. Here the pieces are given: rank p owns
// piece p, pieces may differ in length, and stream t works on the t-th of k parts of every piece.
//
// Steps: k. In the first the input's pieces, which may be separate tensors, go one by one: N - N /
// n messages per stream; partial sums lie in scratch from then on, in the order of the stream, so
// that what goes to a neighbour is one range. On the wire: (N - 1) / (k N) S bytes per rail, 1 / k
// of the least that one rail allows. Scratch: S / n elements.
//
// Example, BCube(2, 2), stream 0 on host 0: sends its parts of pieces 1 and 3 to host 1 on rail 0,
// and combines 0 and 2 in scratch; sends the sum of 2 to host 2 on rail 1, and finishes 0.
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

Schedule reduce_scatter_bml(const OpShape& shape, const topology::Topology& topology);
double reduce_scatter_bml_seconds(const CostTerms& terms);

// The same among a group, in which member h is host h of the grid: versions[h] is this rank's
// version of the piece of member h, and is preserved.
void add_reduce_scatter_bml(ScheduleBuilder* builder, const Group& group,
                            const topology::Grid& grid, const std::vector<Range>& versions,
                            const Range& result, uint32_t element_bytes);

}  // namespace dmlcomm::schedule
