// A property of schedules on grids, for tests.
#pragma once

#include <vector>

#include "base/status.h"
#include "schedule/schedule.h"

namespace dmlcomm::schedule {

// No two streams of a rank send on one rail in the same step, where a step of a stream lasts as
// long as it stays on one rail. For schedules in which no stream lacks a message for want of bytes.
Status check_rails_are_not_shared(const std::vector<Schedule>& schedules);

}  // namespace dmlcomm::schedule
