#include "sim/fair_shares.h"

#include <algorithm>

namespace dmlcomm::sim {
namespace {

constexpr uint32_t kNotHere = UINT32_MAX;
// Of a capacity: less than that is what rounding leaves of a full link.
constexpr double kNothing = 1e-9;

}  // namespace

size_t PathHash::operator()(const Path& path) const {
  uint64_t hash = path.size();
  for (uint32_t link : path) {
    hash = (hash ^ link) * 0x9e3779b97f4a7c15;
    hash ^= hash >> 29;
  }
  return hash;
}

FairShares::FairShares(std::vector<double> capacities) : capacities_(std::move(capacities)) {
  stale_.is_in.resize(capacities_.size(), false);
}

FairShares::Layer& FairShares::layer_of(uint8_t priority) {
  std::unique_ptr<Layer>& layer = layers_[priority];
  if (layer == nullptr) {
    layer = std::make_unique<Layer>();
    layer->local_link.resize(capacities_.size(), kNotHere);
  }
  return *layer;
}

// What more urgent layers leave of the link.
double FairShares::left(uint32_t link, const Layer& layer) const {
  if (capacities_[link] == 0) return 0;
  double found = capacities_[link];
  for (const auto& [priority, above] : layers_) {
    if (above.get() == &layer) break;
    if (const uint32_t local = above->local_link[link]; local != kNotHere) {
      found -= above->shares.used(local);
    }
  }
  return found > kNothing * capacities_[link] ? found : 0;
}

uint32_t FairShares::local_link(Layer* layer, uint32_t link) {
  uint32_t& local = layer->local_link[link];
  if (local == kNotHere) {
    local = layer->shares.add_link(left(link, *layer));
    layer->link.push_back(link);
  }
  return local;
}

uint32_t FairShares::group(const Path& path, uint8_t priority) {
  Layer& layer = layer_of(priority);
  const auto [found, is_new] = layer.group_of.try_emplace(path, num_groups());
  if (!is_new) return found->second;
  Path local_path;
  for (uint32_t link : path) local_path.push_back(local_link(&layer, link));
  members_.push_back({&layer, layer.shares.add_group(local_path)});
  layer.group.push_back(found->second);
  return found->second;
}

void FairShares::set_weight(uint32_t group, double weight) {
  const Member& member = members_[group];
  member.layer->shares.set_weight(member.local_group, weight);
}

void FairShares::mark_stale(uint32_t link) {
  if (stale_.is_in[link]) return;
  stale_.is_in[link] = true;
  stale_.links.push_back(link);
}

void FairShares::set_capacity(uint32_t link, double capacity) {
  capacities_[link] = capacity;
  mark_stale(link);
}

void FairShares::update() {
  changed_groups_.clear();
  for (const auto& [priority, layer] : layers_) {
    for (uint32_t link : stale_.links) {
      const uint32_t local = layer->local_link[link];
      if (local != kNotHere) layer->shares.set_capacity(local, left(link, *layer));
    }
    layer->shares.update();
    for (uint32_t local : layer->shares.changed_groups()) {
      changed_groups_.push_back(layer->group[local]);
    }
    if (layers_.size() == 1) continue;  // nobody is left to whom it matters
    for (uint32_t local : layer->shares.changed_links()) mark_stale(layer->link[local]);
  }
  for (uint32_t link : stale_.links) stale_.is_in[link] = false;
  stale_.links.clear();
}

double FairShares::level(uint32_t group) const {
  const Member& member = members_[group];
  return member.layer->shares.level(member.local_group);
}

}  // namespace dmlcomm::sim
