// The closed form that the BML algorithms share.
#pragma once

#include "schedule/price/estimate.h"

namespace dmlcomm::schedule {

// How the hosts at one switch exchange their parts: each sends to all others, or to the next one.
enum class LevelExchange { direct, ring };

// Seconds of one stage of BML, aggregation or broadcast, without the combining. In step w stream t
// moves (n - 1) / n of a set over level l = (w + t) mod k, of size n, each way; the k streams share
// a rank's time for posting. Since steps overlap, the rail that is busy longest
// decides.
double bml_stage_seconds(const EstimateTerms& terms,
                         LevelExchange exchange = LevelExchange::direct);

}  // namespace dmlcomm::schedule
