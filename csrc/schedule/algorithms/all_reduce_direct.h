// all_reduce, direct: a reduce-scatter and an all-gather in which every pair of ranks talks.
//
// Source: Thakur, Rabenseifner, Gropp, "Optimization of Collective Communication
// Operations in MPICH", 2005, with the pairwise exchange in both phases; the P2P parameter
// server of data-parallel training is the same pattern. Vocabulary: the vector is cut into
// N *parts*; rank r owns part r.
//
// Steps: (1) every rank sends part p to rank p and combines the N - 1 versions of its own part with
// its own; (2) it sends the result to all others. Two rounds, whatever N. On the wire: each rank
// sends and receives 2 S (N - 1) / N bytes, which is the least possible, in 2 (N - 1) messages.
// Each element is combined by one rank, so all ranks have identical bits. Long vectors of ranks
// that talk over loopback go block by block (blocks.h), each in such rounds and messages.
//
// Example, N = 3: rank 1 sends part 2 to 2 and part 0 to 0; computes part 1 = ((1 + 0) + 2); sends
// it to 2 and 0; receives part 0 from 0 and part 2 from 2.
#pragma once

#include "schedule/op_shape.h"
#include "schedule/price/cost_terms.h"
#include "schedule/schedule.h"
#include "topology/topology.h"

namespace dmlcomm::schedule {

Schedule all_reduce_direct(const OpShape& shape, const topology::Topology& topology);
double all_reduce_direct_seconds(const CostTerms& terms);

}  // namespace dmlcomm::schedule
