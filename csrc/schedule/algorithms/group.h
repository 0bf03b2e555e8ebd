// The ranks that a rank talks to, in an order that spreads load, and Group, the ranks among which
// one part of a collective runs.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "topology/topology.h"

namespace dmlcomm::schedule {

// In step i every rank talks to a different peer.
//
// r + 1, r + 2, ..., r + N - 1 (mod N): whom rank r sends to in step 1, 2, ...
inline std::vector<uint32_t> ranks_after(uint32_t rank, uint32_t num_ranks) {
  std::vector<uint32_t> ranks;
  for (uint32_t i = 1; i < num_ranks; ++i) ranks.push_back((rank + i) % num_ranks);
  return ranks;
}

// r - 1, r - 2, ..., r - N + 1 (mod N): who sends to rank r in step 1, 2, ...
inline std::vector<uint32_t> ranks_before(uint32_t rank, uint32_t num_ranks) {
  std::vector<uint32_t> ranks;
  for (uint32_t i = 1; i < num_ranks; ++i) ranks.push_back((rank + num_ranks - i) % num_ranks);
  return ranks;
}

// Member i is rank ranks[i].
struct Group {
  uint32_t index = 0;  // of this rank
  std::vector<uint32_t> ranks;

  uint32_t size() const { return static_cast<uint32_t>(ranks.size()); }
  // The ranks of its neighbours, where the members form a ring.
  uint32_t next() const { return ranks[(index + 1) % size()]; }
  uint32_t previous() const { return ranks[(index + size() - 1) % size()]; }
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
