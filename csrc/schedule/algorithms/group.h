// Group: the ranks among which one part of a collective runs; member i is rank ranks[i].
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "base/check.h"
#include "topology/topology.h"

namespace dmlcomm::schedule {

struct Group {
  uint32_t index = 0;  // of this rank
  std::vector<uint32_t> ranks;

  uint32_t size() const { return static_cast<uint32_t>(ranks.size()); }
};

inline Group group_of_all(uint32_t rank, uint32_t num_ranks) {
  Group group{rank, {}};
  for (uint32_t r = 0; r < num_ranks; ++r) group.ranks.push_back(r);
  return group;
}

// The ranks of this rank's host.
inline Group group_within_host(const topology::Topology& topology, uint32_t rank) {
  Group group;
  for (uint32_t r = 0; r < topology.num_ranks(); ++r) {
    if (r == rank) group.index = group.size();
    if (topology.same_host(r, rank)) group.ranks.push_back(r);
  }
  return group;
}

// The ranks with the same index within their host as `rank`, ordered by the numbers of the hosts,
// so that on a grid member h is on host h. Every host has the same number of ranks.
inline Group group_across_hosts(const topology::Topology& topology, uint32_t rank) {
  const auto& hosts = topology.host_of_rank;
  std::vector<uint32_t> seen(*std::max_element(hosts.begin(), hosts.end()) + size_t{1}, 0);
  const auto own_place = std::count(hosts.begin(), hosts.begin() + rank, hosts[rank]);
  std::vector<std::pair<uint32_t, uint32_t>> members;  // (host, rank)
  for (uint32_t r = 0; r < hosts.size(); ++r) {
    if (seen[hosts[r]]++ == own_place) members.emplace_back(hosts[r], r);
  }
  std::sort(members.begin(), members.end());
  Group group;
  for (const auto& [host, member] : members) {
    if (member == rank) group.index = group.size();
    group.ranks.push_back(member);
  }
  return group;
}

}  // namespace dmlcomm::schedule
