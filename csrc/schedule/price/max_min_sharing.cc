#include "schedule/price/max_min_sharing.h"

#include <algorithm>
#include <limits>

namespace dmlcomm::schedule {

uint32_t MaxMinSharing::add_resource(double bytes_per_s, double contention) {
  resources_.push_back({bytes_per_s, contention});
  return static_cast<uint32_t>(resources_.size() - 1);
}

void MaxMinSharing::add(uint32_t flow, double bytes, const std::vector<Use>& uses) {
  flows_.push_back({flow, bytes, bytes * 1e-9, 0, uses});
  is_shared_ = false;
}

double MaxMinSharing::seconds_to_first_end() {
  if (!is_shared_) share();
  double seconds = std::numeric_limits<double>::infinity();
  for (const Flow& flow : flows_) seconds = std::min(seconds, flow.bytes_left / flow.bytes_per_s);
  return seconds;
}

std::vector<uint32_t> MaxMinSharing::advance(double seconds) {
  if (!is_shared_) share();
  std::vector<uint32_t> ended;
  for (Flow& flow : flows_) {
    flow.bytes_left -= seconds * flow.bytes_per_s;
    if (flow.bytes_left <= flow.negligible) ended.push_back(flow.id);
  }
  if (ended.empty()) return ended;
  std::erase_if(flows_, [](const Flow& flow) { return flow.bytes_left <= flow.negligible; });
  is_shared_ = false;
  return ended;
}

// Of each resource, for the present flows.
std::vector<double> MaxMinSharing::capacities() const {
  std::vector<double> found;
  for (const Resource& resource : resources_) found.push_back(resource.bytes_per_s);
  std::vector<const Use*> first(resources_.size(), nullptr);
  std::vector<bool> contends(resources_.size(), false);
  for (const Flow& flow : flows_) {
    for (const Use& use : flow.uses) {
      const uint32_t r = use.resource;
      if (first[r] == nullptr) first[r] = &use;
      if (first[r]->origin == use.origin || contends[r]) continue;
      contends[r] = true;
      found[r] /= resources_[r].contention;
    }
  }
  return found;
}

// Progressive filling: the resource that can give each of its flows least is the bottleneck of
// these flows and fixes their rate; what they take from the others is gone; repeat with the rest.
void MaxMinSharing::share() {
  is_shared_ = true;
  std::vector<uint32_t> users(resources_.size(), 0);
  for (Flow& flow : flows_) {
    flow.bytes_per_s = 0;
    for (const Use& use : flow.uses) ++users[use.resource];
  }
  std::vector<double> left = capacities();
  for (size_t num_open = flows_.size(); num_open > 0;) {
    size_t bottleneck = resources_.size();
    for (size_t r = 0; r < resources_.size(); ++r) {
      if (users[r] == 0) continue;
      if (bottleneck == resources_.size() ||
          left[r] / users[r] < left[bottleneck] / users[bottleneck]) {
        bottleneck = r;
      }
    }
    const double rate = left[bottleneck] / users[bottleneck];
    for (Flow& flow : flows_) {
      if (flow.bytes_per_s > 0) continue;
      if (std::none_of(flow.uses.begin(), flow.uses.end(),
                       [&](const Use& use) { return use.resource == bottleneck; })) {
        continue;
      }
      flow.bytes_per_s = rate;
      --num_open;
      for (const auto& [resource, origin] : flow.uses) {
        // Rounding must not leave a resource that still has users with nothing at all.
        left[resource] = std::max(left[resource] - rate, resources_[resource].bytes_per_s * 1e-9);
        --users[resource];
      }
    }
  }
}

}  // namespace dmlcomm::schedule
