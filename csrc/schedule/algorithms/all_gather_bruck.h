// all_gather, Bruck: the number of pieces a rank has doubles in each round.
//
// Source: Bruck, Ho, Kipnis, Upfal, Weathersby, "Efficient algorithms for all-to-all communications
// in multiport message-passing systems", 1997. Works for any N; pieces may differ in length.
//
// Vocabulary: *block* j of rank r is the piece of rank r + j (mod N). Blocks lie one after the
// other in scratch, so that one message carries many.
//
// Steps: in round k, with d = 2^k, rank r sends its first min(d, N - d) blocks to r - d, where they
// are blocks d, d + 1, ...; in the end blocks are copied to where their pieces belong. On the wire:
// S (N - 1) / N bytes per rank in ceil(log2 N) messages: for small pieces.
//
// Example, N = 3: 0 has block 0 (piece 0), gets block 1 (piece 1) from 1, and
// block 2 (piece 2) from 2.
#pragma once

#include "schedule/op_shape.h"
#include "schedule/price/cost_terms.h"
#include "schedule/schedule.h"

namespace dmlcomm::schedule {

Schedule all_gather_bruck(const OpShape& shape);
double all_gather_bruck_seconds(const CostTerms& terms);

}  // namespace dmlcomm::schedule
