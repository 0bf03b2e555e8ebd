// all_reduce, recursive doubling: in round k a rank exchanges its whole vector with the rank
// whose number differs in bit k.
//
// Source: Thakur, Rabenseifner, Gropp 2005. For the words core, extra and partner,
// which make it work for any N, see power_of_two_fold.h.
//
// Steps: extras hand their vector to their partner; log2 P rounds in the core; partners
// hand the result back. On the wire: S log2 P bytes per rank: for small vectors, where the
// number of rounds is what counts.
//
// Identical bits: after round k all 2^(k + 1) core ranks that agree in the bits above k hold the
// same expression. For, before the round those with bit k clear hold x and those with bit k set
// hold y (k = 0: their own vectors), and both sides then compute op(x, y): the upper side takes
// what it received as the first operand.
//
// Memory: the two sides of an exchange send and receive at the same time, so the result of a round
// goes where its operand is not: output and scratch take turns.
//
// Example, N = 3: 1 sends to 0; 0 and 2 exchange (0 + 1) and 2; 0 sends the sum to 1.
#pragma once

#include "schedule/op_shape.h"
#include "schedule/price/cost_terms.h"
#include "schedule/schedule.h"

namespace dmlcomm::schedule {

Schedule all_reduce_recursive_doubling(const OpShape& shape);
double all_reduce_recursive_doubling_seconds(const CostTerms& terms);

}  // namespace dmlcomm::schedule
