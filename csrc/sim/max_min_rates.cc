#include "sim/max_min_rates.h"

#include <limits>

namespace dmlcomm::sim {
namespace {

Status check_length(const char* what, size_t length, size_t num_flows) {
  if (length == 0 || length == num_flows) return {};
  return invalid("there are ", num_flows, " paths, but ", length, " ", what, ": give one to each");
}

}  // namespace

Status check_path(const std::string& who, const std::vector<int64_t>& path, size_t num_links) {
  for (int64_t link : path) {
    if (link >= 0 && static_cast<size_t>(link) < num_links) continue;
    if (num_links == 0) return invalid(who, " names link ", link, ", but there are no links");
    return invalid(who, " names link ", link, ", but links are numbered from 0 to ", num_links - 1,
                   ": give a capacity to each link");
  }
  return {};
}

Status check_weight(const std::string& who, double weight) {
  if (weight >= kLeastWeight && weight <= kMostWeight) return {};
  return invalid(who, " has the weight ", weight, ": expected ", kLeastWeight, " to ", kMostWeight);
}

Status check_priority(const std::string& who, int64_t priority) {
  if (priority >= 0 && priority <= kLastPriority) return {};
  return invalid(who, " has the priority ", priority, ": expected 0 (first) to ", kLastPriority);
}

Status check_capacity(const std::string& who, double capacity) {
  if (capacity >= 0 && capacity <= kMostCapacity) return {};
  return invalid(who, " has the capacity ", capacity, ": expected 0 to ", kMostCapacity,
                 " bits per second");
}

Result<std::vector<double>> max_min_rates(const std::vector<std::vector<int64_t>>& paths,
                                          const std::vector<double>& capacities,
                                          const std::vector<double>& weights,
                                          const std::vector<int64_t>& priorities) {
  for (size_t link = 0; link < capacities.size(); ++link) {
    DMLCOMM_RETURN_IF_ERROR(check_capacity(str_cat("link ", link), capacities[link]));
  }
  DMLCOMM_RETURN_IF_ERROR(check_length("weights", weights.size(), paths.size()));
  DMLCOMM_RETURN_IF_ERROR(check_length("priorities", priorities.size(), paths.size()));
  FairShares shares(capacities);
  constexpr uint32_t kNone = UINT32_MAX;
  std::vector<uint32_t> group_of(paths.size(), kNone);
  std::vector<double> weight_of;  // by group
  for (size_t flow = 0; flow < paths.size(); ++flow) {
    const std::string who = str_cat("flow ", flow);
    const double weight = weights.empty() ? 1 : weights[flow];
    const int64_t priority = priorities.empty() ? 0 : priorities[flow];
    DMLCOMM_RETURN_IF_ERROR(check_path(who, paths[flow], capacities.size()));
    DMLCOMM_RETURN_IF_ERROR(check_weight(who, weight));
    DMLCOMM_RETURN_IF_ERROR(check_priority(who, priority));
    if (paths[flow].empty()) continue;
    group_of[flow] =
        shares.group(Path(paths[flow].begin(), paths[flow].end()), static_cast<uint8_t>(priority));
    weight_of.resize(shares.num_groups(), 0);
    weight_of[group_of[flow]] += weight;
  }
  for (uint32_t group = 0; group < shares.num_groups(); ++group) {
    shares.set_weight(group, weight_of[group]);
  }
  shares.update();
  std::vector<double> rates(paths.size(), std::numeric_limits<double>::infinity());
  for (size_t flow = 0; flow < paths.size(); ++flow) {
    if (group_of[flow] == kNone) continue;
    rates[flow] = shares.level(group_of[flow]) * (weights.empty() ? 1 : weights[flow]);
  }
  return rates;
}

}  // namespace dmlcomm::sim
