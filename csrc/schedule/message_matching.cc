#include "schedule/message_matching.h"

#include <algorithm>
#include <map>
#include <tuple>

#include "base/str_cat.h"

namespace dmlcomm::schedule {
namespace {

// The messages of one (sender, receiver, stream): the steps of both ends, in stream order.
struct Channel {
  std::vector<StepRef> sends, receives;
};

std::vector<Channel> channels_of(const std::vector<Schedule>& schedules) {
  std::map<std::tuple<uint32_t, uint32_t, uint16_t>, Channel> channels;
  for (uint32_t rank = 0; rank < schedules.size(); ++rank) {
    for (uint32_t id = 0; id < schedules[rank].steps.size(); ++id) {
      const Step& step = schedules[rank].steps[id];
      const uint16_t stream = schedules[rank].stream_of[id];
      if (step.kind == StepKind::copy) continue;
      if (step.kind == StepKind::send) {
        channels[{rank, step.peer, stream}].sends.push_back({rank, id});
      } else {
        channels[{step.peer, rank, stream}].receives.push_back({rank, id});
      }
    }
  }
  std::vector<Channel> result;
  for (auto& [key, channel] : channels) result.push_back(std::move(channel));
  return result;
}

}  // namespace

Status step_error(const std::vector<Schedule>& schedules, uint32_t rank, uint32_t step,
                  const std::string& what) {
  const Schedule& schedule = schedules[rank];
  return {StatusCode::invalid_argument,
          name_of(schedule),
          ": rank ",
          rank,
          " step ",
          step,
          " (",
          to_string(schedule.steps[step]),
          "): ",
          what};
}

Result<Matches> match_messages(const std::vector<Schedule>& schedules) {
  Matches matches(schedules.size());
  for (uint32_t rank = 0; rank < schedules.size(); ++rank) {
    for (uint32_t id = 0; id < schedules[rank].steps.size(); ++id) {
      matches[rank].push_back({rank, id});
    }
  }
  const auto step_at = [&](StepRef ref) -> const Step& {
    return schedules[ref.first].steps[ref.second];
  };
  for (const auto& [sends, receives] : channels_of(schedules)) {
    const size_t num_pairs = std::min(sends.size(), receives.size());
    for (size_t i = 0; i < num_pairs; ++i) {
      const auto [sender, send] = sends[i];
      const auto [receiver, receive] = receives[i];
      matches[sender][send] = receives[i];
      matches[receiver][receive] = sends[i];
      const uint8_t rail = step_at(sends[0]).rail;
      if (step_at(sends[i]).rail != rail || step_at(receives[i]).rail != rail) {
        return step_error(schedules, receiver, receive,
                          str_cat("is not on the one rail that its stream has from ", sender));
      }
      const uint64_t sent = step_at(sends[i]).range.length;
      const uint64_t expected = step_at(receives[i]).range.length;
      if (sent == expected) continue;
      return step_error(schedules, receiver, receive,
                        str_cat("expects ", expected, " elements, but step ", send, " of rank ",
                                sender, " sends ", sent));
    }
    if (sends.size() == receives.size()) continue;
    const StepRef extra = sends.size() > receives.size() ? sends[num_pairs] : receives[num_pairs];
    return step_error(schedules, extra.first, extra.second,
                      str_cat("rank ", step_at(extra).peer, " has no step for the other end"));
  }
  return matches;
}

}  // namespace dmlcomm::schedule
