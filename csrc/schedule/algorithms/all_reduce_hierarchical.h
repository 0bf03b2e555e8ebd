// all_reduce, hierarchical: through shared memory inside hosts, and once through the network.
//
// Source: Jia et al., "Highly scalable deep learning training system with mixed-precision: training
// ImageNet in four minutes", 2018. Several hosts with m ranks each; stages in hierarchy.h.
//
// Steps: (1) a direct reduce_scatter inside each host leaves every rank with 1 / m of the host's
// sum; (2) an all_reduce of this part with the ranks in the same place on the other hosts, by BML
// on a grid and in a ring elsewhere; (3) a direct all_gather inside each host. Through the NICs of
// a host pass 2 S (H - 1) / H bytes for H hosts, as if it had one rank.
//
// Example, 2 hosts of 2 ranks: 0 gets half 0 of 1 and adds it; exchanges quarters with 2; sends
// half 0 to 1 and gets half 1.
#pragma once

#include "schedule/op_shape.h"
#include "schedule/price/cost_terms.h"
#include "schedule/schedule.h"
#include "topology/topology.h"

namespace dmlcomm::schedule {

Schedule all_reduce_hierarchical(const OpShape& shape, const topology::Topology& topology);
double all_reduce_hierarchical_seconds(const CostTerms& terms);

}  // namespace dmlcomm::schedule
