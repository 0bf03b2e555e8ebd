#include "tests/schedule_topologies.h"

#include <numeric>

namespace dmlcomm::schedule {

std::vector<Algorithm> all_schedules() {
  std::vector<Algorithm> algorithms = all_algorithms();
  std::erase_if(algorithms, [](const Algorithm& algorithm) { return !algorithm.is_schedule(); });
  return algorithms;
}

std::vector<uint32_t> one_rank_per_host(uint32_t num_hosts) {
  std::vector<uint32_t> hosts(num_hosts);
  std::iota(hosts.begin(), hosts.end(), 0u);
  return hosts;
}

std::vector<std::vector<uint32_t>> grids_of(uint32_t num_hosts) {
  std::vector<std::vector<uint32_t>> grids;
  for (uint32_t size = 2; size < num_hosts; ++size) {
    if (num_hosts % size != 0) continue;
    for (std::vector<uint32_t>& rest : grids_of(num_hosts / size)) {
      rest.insert(rest.begin(), size);
      grids.push_back(rest);
    }
  }
  if (num_hosts > 1) grids.push_back({num_hosts});
  return grids;
}

topology::Topology loopback_on_cores(uint32_t num_ranks, uint32_t per_core) {
  return topology::on_shared_cores(topology::single_host(num_ranks, false), per_core);
}

std::vector<topology::Topology> topologies_of(const Algorithm& algorithm, uint32_t num_ranks) {
  const topology::Topology one_host = topology::single_host(num_ranks, true);
  if (algorithm.applies(one_host)) return {one_host, topology::single_host(num_ranks, false)};
  std::vector<topology::Topology> topologies;
  for (uint32_t per_core = 2; per_core <= num_ranks; ++per_core) {
    topologies.push_back(loopback_on_cores(num_ranks, per_core));
  }
  for (const std::vector<uint32_t>& grid : grids_of(num_ranks)) {
    topologies.push_back(topology::grid_network(one_rank_per_host(num_ranks), grid, 10e9, true));
  }
  for (uint32_t per_host = 2; per_host <= 4; ++per_host) {
    if (num_ranks % per_host != 0 || num_ranks / per_host > 4) continue;
    const uint32_t num_hosts = num_ranks / per_host;
    std::vector<uint32_t> in_order, interleaved;
    for (uint32_t rank = 0; rank < num_ranks; ++rank) {
      in_order.push_back(rank / per_host);
      interleaved.push_back(rank % num_hosts);
    }
    topologies.push_back(topology::flat_network(in_order, 2, 10e9, true));
    topologies.push_back(topology::flat_network(interleaved, 1, 10e9, false));
    for (const std::vector<uint32_t>& grid : grids_of(num_hosts)) {
      topologies.push_back(topology::grid_network(in_order, grid, 10e9, true));
      topologies.push_back(topology::grid_network(interleaved, grid, 10e9, true));
    }
  }
  std::erase_if(topologies, [&](const auto& topology) { return !algorithm.applies(topology); });
  return topologies;
}

}  // namespace dmlcomm::schedule
