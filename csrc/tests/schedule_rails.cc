#include "tests/schedule_rails.h"

#include <algorithm>

#include "base/str_cat.h"
#include "schedule/message_matching.h"

namespace dmlcomm::schedule {
namespace {

// The rails each stream sends on, in its order, without repetition; and where each visit starts.
struct Visit {
  uint8_t rail;
  uint32_t first_step;
};

std::vector<std::vector<Visit>> visits_of(const Schedule& schedule) {
  std::vector<std::vector<Visit>> visits(schedule.num_streams);
  for (uint32_t id = 0; id < schedule.steps.size(); ++id) {
    const Step& step = schedule.steps[id];
    auto& own = visits[schedule.stream_of[id]];
    if (step.kind != StepKind::send || step.rail == kAnyRail) continue;
    if (own.empty() || own.back().rail != step.rail) own.push_back({step.rail, id});
  }
  return visits;
}

Status check_sharing(const std::vector<Schedule>& schedules, uint32_t rank) {
  const auto visits = visits_of(schedules[rank]);
  for (size_t b = 0; b < visits.size(); ++b) {
    for (size_t a = 0; a < b; ++a) {
      for (size_t w = 0; w < std::min(visits[a].size(), visits[b].size()); ++w) {
        if (visits[a][w].rail != visits[b][w].rail) continue;
        return step_error(schedules, rank, visits[b][w].first_step,
                          str_cat("shares its rail with stream ", a));
      }
    }
  }
  return {};
}

}  // namespace

Status check_rails_are_not_shared(const std::vector<Schedule>& schedules) {
  for (uint32_t rank = 0; rank < schedules.size(); ++rank) {
    DMLCOMM_RETURN_IF_ERROR(check_sharing(schedules, rank));
  }
  return {};
}

}  // namespace dmlcomm::schedule
