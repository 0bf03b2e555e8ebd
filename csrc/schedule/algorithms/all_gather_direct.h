// all_gather, direct: every rank sends its piece to every other rank.
//
// Source: folklore; the linear algorithm of MPI implementations, with the peers rotated so that in
// step i rank r sends to r + i and receives from r - i. Pieces may differ in length.
//
// Steps: one round. On the wire: each rank receives S (N - 1) / N bytes, the least
// possible, in N - 1 messages.
//
// Example, N = 3: rank 1 copies its input to piece 1 of the output, sends it to 2 and 0, and
// receives piece 0 from 0 and piece 2 from 2.
#pragma once

#include "schedule/op_shape.h"
#include "schedule/price/cost_terms.h"
#include "schedule/schedule.h"

namespace dmlcomm::schedule {

Schedule all_gather_direct(const OpShape& shape);
double all_gather_direct_seconds(const CostTerms& terms);

}  // namespace dmlcomm::schedule
