// all_reduce, recursive doubling: in round k a rank exchanges its whole vector with the rank whose
// number differs in bit k.
//
// Source: Thakur, Rabenseifner, Gropp 2005, section 4.5. For the words core, extra and partner,
// which make it work for any N, see power_of_two_fold.h.
//
// Steps: extras hand their vector to their partner; log2 P rounds in the core; partners hand the
// result back. On the wire: S log2 P bytes per rank: for small vectors, where the number of rounds
// is what counts.
//
// Identical bits: after round k all 2^(k + 1) ranks that agree in the bits above k hold the same
// expression, up to exchanging the two operands of a combination. For, before the round one half of
// them holds x and the other half y (k = 0: their own vectors), and after it all hold op(x, y) or
// op(y, x). All our operators are commutative to the bit (payloads of NaN aside).
//
// Memory: the two sides of an exchange send and receive at the same time, so the result of a round
// goes where its operand is not: output and scratch take turns.
//
// Example, N = 3: 1 sends to 0; 0 and 2 exchange (0 + 1) and 2; 0 sends the sum to 1.
#pragma once

#include "schedule/cost_terms.h"
#include "schedule/op_shape.h"
#include "schedule/schedule.h"

namespace dmlcomm::schedule {

Schedule all_reduce_recursive_doubling(const OpShape& shape);
double all_reduce_recursive_doubling_seconds(const CostTerms& terms);

}  // namespace dmlcomm::schedule
