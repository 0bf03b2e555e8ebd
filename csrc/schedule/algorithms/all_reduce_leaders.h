// all_reduce, leaders: through the first of the ranks that share a core.
//
// Source: Mamidala, Kumar, De, Panda, "MPI Collectives on Modern Multicore Clusters", 2008, with a
// core in the place of a node. For ranks that talk over loopback, and are kept on cores: a packet
// that is read on the core that wrote it costs half as much. Vocabulary: m ranks share each of G
// cores; the first of them is their *leader*, the others are its *helpers*. The vector is cut into
// G *parts*; the leader on core g owns part g.
//
// Steps: (1) helpers send the vector to their leader, who combines it with its own; (2) the leaders
// do a direct all_reduce (all_reduce_direct.h); (3) each passes every finished part on to its
// helpers. All cores have the same to do at any time, though leaders do more than helpers. On the
// wire: 2 (N - 1) S bytes in all, as few as any other way, of which 2 (N - G) S stay on their core,
// where it would be (m - 1) / (N - 1) of them. Long vectors go block by block (blocks.h). All ranks
// have identical bits.
//
// Example, N = 4 on two cores: 1 sends to 0, and 3 to 2. 0 sends part 1 of the sum of its core to
// 2, which sends part 0; each adds, and sends the result to the other leader and to its own helper,
// who gets the other part as well, when it comes.
#pragma once

#include "schedule/op_shape.h"
#include "schedule/price/cost_terms.h"
#include "schedule/schedule.h"
#include "topology/topology.h"

namespace dmlcomm::schedule {

Schedule all_reduce_leaders(const OpShape& shape, const topology::Topology& topology);
double all_reduce_leaders_seconds(const CostTerms& terms);

}  // namespace dmlcomm::schedule
