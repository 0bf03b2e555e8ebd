// Which send meets which receive, over the schedules of all ranks, by the rule in schedule.h. For
// tools that see all ranks at once: the verifier and the cost model.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "schedule/schedule.h"

namespace dmlcomm::schedule {

using StepRef = std::pair<uint32_t, uint32_t>;  // (rank, step)

// matches[r][i]: the other end of the message of step i of rank r; for a copy the step itself.
using Matches = std::vector<std::vector<StepRef>>;

// Fails where an end is missing or the lengths differ, naming the step.
Result<Matches> match_messages(const std::vector<Schedule>& schedules);

// `invalid_argument`, "all_reduce_ring: rank 2 step 5 (recv output[0, 4) from 1): <what>".
Status step_error(const std::vector<Schedule>& schedules, uint32_t rank, uint32_t step,
                  const std::string& what);

}  // namespace dmlcomm::schedule
