// all_gather, hierarchical: once through the network, and through shared memory inside hosts.
//
// Source: the second half of all_reduce_hierarchical.h. Pieces may differ in length.
//
// Steps: (1) an all_gather among the ranks that have the same place on their hosts, by BML on a
// grid and in a ring elsewhere; (2) inside each host every rank sends what it has to all others.
// Through the NICs of a host pass S (H - 1) / H bytes for H hosts.
//
// Example, 2 hosts of 2 ranks: 0 gets piece 2 from 2; sends 0 and 2 to 1, and gets 1 and 3.
#pragma once

#include "schedule/op_shape.h"
#include "schedule/price/cost_terms.h"
#include "schedule/schedule.h"
#include "topology/topology.h"

namespace dmlcomm::schedule {

Schedule all_gather_hierarchical(const OpShape& shape, const topology::Topology& topology);
double all_gather_hierarchical_seconds(const CostTerms& terms);

}  // namespace dmlcomm::schedule
