// broadcast, scatter and all-gather: the root deals out parts, and the others exchange them.
//
// Source: van de Geijn's broadcast (Thakur, Rabenseifner, Gropp 2005), with direct
// exchange in both phases, and without the root in the second: it has everything. Vocabulary: the
// *members* are the M = N - 1 ranks other than the root, member i being rank root + 1 + i (mod N);
// the vector is cut into M *parts*.
//
// Steps: (1) the root sends part i to member i; (2) each member sends its part to the other
// members. On the wire: the root sends S bytes, a member S (M - 1) / M, both about the
// least possible; two rounds.
//
// Example, N = 3, root 0: 0 sends part 0 to 1 and part 1 to 2; 1 and 2 exchange their parts.
#pragma once

#include "schedule/op_shape.h"
#include "schedule/price/cost_terms.h"
#include "schedule/schedule.h"

namespace dmlcomm::schedule {

Schedule broadcast_scatter_allgather(const OpShape& shape);
double broadcast_scatter_allgather_seconds(const CostTerms& terms);

}  // namespace dmlcomm::schedule
