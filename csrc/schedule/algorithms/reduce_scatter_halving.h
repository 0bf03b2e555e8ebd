// reduce_scatter, halving: recursive halving of the set of pieces a rank is concerned with.
//
// Source: Thakur, Rabenseifner, Gropp 2005. For core, extra and partner, which make it
// work for any N, see power_of_two_fold.h. Pieces may differ in length.
//
// Vocabulary: *block* v is what core rank v ends up with: its own piece, and after it that of its
// extra if it has one. The blocks in order are the pieces in order. A *window* is a run of blocks.
//
// Steps: everyone copies its input to scratch, where one message may carry many pieces. Extras hand
// all of it to their partner. With d = P/2, ..., 1, ranks v and v xor d, which have the same window
// of 2 d blocks, each keep the half that holds their own block and send the other. Last, partners
// hand their extra its piece. On the wire: S (P - 1) / P bytes per core rank in log2 P messages;
// extras add about S and two rounds. For small pieces.
//
// Example, N = 3: 1 sends everything to 0; 0 sends (0 + 1) of piece 2 to 2 and gets pieces 0, 1 of
// 2; sends piece 1 of the sum to 1.
#pragma once

#include "schedule/op_shape.h"
#include "schedule/price/cost_terms.h"
#include "schedule/schedule.h"

namespace dmlcomm::schedule {

Schedule reduce_scatter_halving(const OpShape& shape);
double reduce_scatter_halving_seconds(const CostTerms& terms);

}  // namespace dmlcomm::schedule
