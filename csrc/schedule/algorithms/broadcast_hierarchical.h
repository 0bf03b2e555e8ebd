// broadcast, hierarchical: once through the network, and through shared memory inside hosts.
//
// Source: folklore; the scatter and all_gather of van de Geijn, with a broadcast between hosts in
// the middle. Several hosts with m ranks each; stages in hierarchy.h.
//
// Steps: (1) the root scatters m parts over the ranks of its host; (2) each of them passes its part
// along a chain of the ranks in the same place on the other hosts; (3) inside each host every rank
// sends its part to the others. Through the NIC of a host pass S bytes, out and in.
//
// Example, 2 hosts of 2 ranks, root 0: 0 sends half 1 to 1; 0 and 1 send their halves to 2 and 3;
// 2 and 3 exchange them, and 0 sends half 0 to 1.
#pragma once

#include "schedule/op_shape.h"
#include "schedule/price/cost_terms.h"
#include "schedule/schedule.h"
#include "topology/topology.h"

namespace dmlcomm::schedule {

Schedule broadcast_hierarchical(const OpShape& shape, const topology::Topology& topology);
double broadcast_hierarchical_seconds(const CostTerms& terms);

}  // namespace dmlcomm::schedule
