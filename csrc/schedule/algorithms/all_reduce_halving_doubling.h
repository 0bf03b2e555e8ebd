// all_reduce, halving and doubling: a reduce-scatter by recursive halving and an
// all-gather by recursive doubling.
//
// Source: Rabenseifner, "Optimization of collective reduction operations", 2004; Thakur,
// Rabenseifner, Gropp 2005. For core, extra and partner, see power_of_two_fold.h.
//
// Vocabulary: the vector is cut into P *parts*; a *window* is a run of parts. Core rank v ends
// up with the window [v, v + 1).
//
// Steps: extras hand their vector to their partner. Halving: the window starts as [0, P); with d =
// P/2, P/4, ..., 1, ranks v and v xor d, which have the same window, each keep the half that holds
// their own part and send the other. Doubling: the same exchanges backwards. Partners hand the
// result back. On the wire: 2 S (P - 1) / P bytes per core rank in 2 log2 P rounds; extras add 2 S
// and two rounds. Each element is finished by one rank, so all have identical bits.
//
// Example, N = 4: 0 sends parts 2, 3 to 2 and gets its 0, 1; sends part 1 to 1 and gets its 0; has
// part 0 of the sum. Then 0 and 1 exchange parts 0 and 1; 0 and 2 exchange 0, 1 and 2, 3.
#pragma once

#include "schedule/op_shape.h"
#include "schedule/price/cost_terms.h"
#include "schedule/schedule.h"

namespace dmlcomm::schedule {

Schedule all_reduce_halving_doubling(const OpShape& shape);
double all_reduce_halving_doubling_seconds(const CostTerms& terms);

}  // namespace dmlcomm::schedule
