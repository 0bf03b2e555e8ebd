#include "schedule/algorithms/hierarchy.h"

#include "schedule/algorithms/bml_shares.h"

#include <algorithm>
#include <map>
#include <numeric>

#include "schedule/pieces.h"

namespace dmlcomm::schedule {

bool is_hierarchical(const topology::Topology& topology) {
  std::map<uint32_t, uint32_t> ranks;
  for (uint32_t host : topology.host_of_rank) ++ranks[host];
  const uint32_t of_first = ranks.begin()->second;
  return ranks.size() > 1 && of_first > 1 &&
         std::all_of(ranks.begin(), ranks.end(),
                     [&](const auto& host) { return host.second == of_first; });
}

Hierarchy::Hierarchy(const topology::Topology& topology, uint32_t rank)
    : within(group_within_host(topology, rank)),
      across(group_across_hosts(topology, rank)),
      host_stream_(
          static_cast<uint16_t>(kMaxBmlSegments * std::max<size_t>(1, topology.grid.size()))) {}

std::vector<uint32_t> Hierarchy::mates_after() const {
  return ranks_after(within.index, within.size());
}

std::vector<uint32_t> Hierarchy::mates_before() const {
  return ranks_before(within.index, within.size());
}

std::vector<uint32_t> Hierarchy::ranks_of_mates_before() const {
  std::vector<uint32_t> ranks;
  for (uint32_t mate : mates_before()) ranks.push_back(within.ranks[mate]);
  return ranks;
}

Range Hierarchy::part_of_output(const OpShape& shape, uint32_t member) const {
  return Parts({BufferId::output, 0, shape.counts[0]}, within.size(), shape.element_bytes)(member);
}

StageTerms stage_terms(const EstimateTerms& terms) {
  const topology::Topology& topology = *terms.topology;
  const uint32_t per_host = topology.max_ranks_per_host();
  topology::Topology host = topology;
  host.host_of_rank.assign(per_host, 0);
  host.grid.clear();
  topology::Topology network = topology;
  network.host_of_rank.resize(topology.num_hosts());
  std::iota(network.host_of_rank.begin(), network.host_of_rank.end(), 0u);
  network.inter_host.beta_s_per_byte *= per_host;
  for (double& beta : network.rail_betas_s_per_byte) beta *= per_host;
  StageTerms stages{estimate_terms(host, terms.bytes),
                    estimate_terms(network, terms.bytes / per_host, terms.bml_shares)};
  stages.within.topology = stages.across.topology = nullptr;  // the copies end here
  return stages;
}

}  // namespace dmlcomm::schedule
