// reduce_scatter, hierarchical: through shared memory inside hosts, and once through the network.
//
// Source: the first half of all_reduce_hierarchical.h. Pieces may differ in length.
//
// Steps: (1) inside each host every rank collects in scratch the host's sums of the pieces of those
// ranks that have its place on their hosts; (2) a reduce_scatter among these, by BML on a grid and
// in a ring elsewhere. Through the NICs of a host pass S (H - 1) / H bytes for H hosts. Scratch:
// the pieces of H ranks, and what stage 2 needs.
//
// Example, 2 hosts of 2 ranks: 0 gets pieces 0 and 2 of 1 and adds them; sends 2 to 2, and gets 0.
#pragma once

#include "schedule/op_shape.h"
#include "schedule/price/cost_terms.h"
#include "schedule/schedule.h"
#include "topology/topology.h"

namespace dmlcomm::schedule {

Schedule reduce_scatter_hierarchical(const OpShape& shape, const topology::Topology& topology);
double reduce_scatter_hierarchical_seconds(const CostTerms& terms);

}  // namespace dmlcomm::schedule
