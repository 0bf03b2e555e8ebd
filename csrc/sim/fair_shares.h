// FairShares: shares of links among flows with weights and strict priorities, kept up to date.
//
// Flows of one priority share what the more urgent ones leave, by max-min fairness: a ShareLayer
// per priority. Priorities are tickets: 0 goes first. Not thread-safe.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include "sim/share_layer.h"

namespace dmlcomm::sim {

using Path = std::vector<uint32_t>;  // links

struct PathHash {
  size_t operator()(const Path& path) const;
};

class FairShares {
 public:
  // Capacities: 0 or more, by link.
  explicit FairShares(std::vector<double> capacities);

  // The group of all flows with this path and priority; ids count from 0. At least one link.
  uint32_t group(const Path& path, uint8_t priority);
  uint32_t num_groups() const { return static_cast<uint32_t>(members_.size()); }

  // As in ShareLayer: both take effect in update().
  void set_weight(uint32_t group, double weight);
  void set_capacity(uint32_t link, double capacity);
  void update();

  // A flow of the group has its weight times the level.
  double level(uint32_t group) const;
  // Groups with another level than before the last update.
  const std::vector<uint32_t>& changed_groups() const { return changed_groups_; }

 private:
  struct Layer {
    ShareLayer shares;
    std::vector<uint32_t> local_link;  // by link
    std::vector<uint32_t> link;        // by local link
    std::vector<uint32_t> group;       // by local group
    std::unordered_map<Path, uint32_t, PathHash> group_of;
  };
  struct Member {  // a group: where it is
    Layer* layer;
    uint32_t local_group;
  };
  // Links of which a layer gets another capacity than before.
  struct Stale {
    std::vector<uint32_t> links;
    std::vector<bool> is_in;  // by link
  };

  Layer& layer_of(uint8_t priority);
  uint32_t local_link(Layer* layer, uint32_t link);
  double left(uint32_t link, const Layer& layer) const;
  void mark_stale(uint32_t link);

  std::vector<double> capacities_;
  std::map<uint8_t, std::unique_ptr<Layer>> layers_;
  std::vector<Member> members_;
  Stale stale_;
  std::vector<uint32_t> changed_groups_;
};

}  // namespace dmlcomm::sim
