#include "schedule/price/route.h"

#include "base/check.h"
#include "schedule/schedule.h"
#include "topology/grid.h"

namespace dmlcomm::schedule {

std::vector<Hop> route(const topology::Topology& topology, uint32_t sender, uint32_t receiver,
                       uint8_t rail) {
  uint32_t host = topology.host_of_rank[sender];
  const uint32_t target = topology.host_of_rank[receiver];
  if (host == target) return {};
  if (topology.grid.empty()) return {{host, target, kAnyRail}};
  const topology::Grid grid(topology.grid);
  if (rail != kAnyRail) {
    DMLCOMM_CHECK(grid.are_neighbours(host, target, rail));
    return {{host, target, rail}};
  }
  std::vector<Hop> hops;
  while (host != target) {
    const uint32_t level = grid.lowest_difference(host, target);
    const uint32_t next = grid.with_digit(host, level, grid.digit(target, level));
    hops.push_back({host, next, static_cast<uint8_t>(level)});
    host = next;
  }
  return hops;
}

}  // namespace dmlcomm::schedule
