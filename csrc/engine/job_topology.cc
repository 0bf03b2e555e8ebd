#include "engine/job_topology.h"

#include <algorithm>
#include <string>
#include <utility>

#include "engine/local/board.h"
#include "topology/grid.h"

namespace dmlcomm::engine {
namespace {

// Of hosts with a network between them.
topology::Topology make_network(const CommunicatorOptions& options,
                                std::vector<uint32_t> host_of_rank, size_t num_hosts) {
  const bool is_grid =
      !options.grid.empty() && topology::Grid(options.grid).num_hosts() == num_hosts;
  const size_t flat_rails = options.grid.empty() ? options.rails.size() : 1;
  return topology::job_network(
      is_grid ? options.host_of_rank : std::move(host_of_rank), static_cast<uint32_t>(flat_rails),
      is_grid ? options.grid : std::vector<uint32_t>(), options.rail_rates_bps);
}

}  // namespace

topology::Topology make_topology(const transport::Mesh& mesh, const CommunicatorOptions& options) {
  const auto num_ranks = static_cast<uint32_t>(mesh.num_ranks());
  if (mesh.all_share_memory()) {
    topology::Topology host = topology::single_host(num_ranks, true);
    // The board may later find out that less is possible.
    const Config& config = *options.config;
    host.memory = shared_memory(num_ranks, config.shm_board_bytes, config.shm_single_copy,
                                config.share_tensors);
    return host;
  }
  std::vector<uint32_t> hosts(num_ranks);
  std::vector<std::string> ids;
  for (uint32_t rank = 0; rank < num_ranks; ++rank) {
    const std::string& id = mesh.job().hosts[rank].host_id;
    auto it = std::find(ids.begin(), ids.end(), id);
    if (it == ids.end()) it = ids.insert(ids.end(), id);
    hosts[rank] = static_cast<uint32_t>(it - ids.begin());
  }
  if (ids.size() == 1) {
    return topology::on_shared_cores(topology::single_host(num_ranks, false),
                                     transport::ranks_per_core_of_host(mesh.job().hosts));
  }
  return topology::on_shared_cores(make_network(options, std::move(hosts), ids.size()),
                                   transport::ranks_per_shared_core(mesh.job().hosts));
}

std::vector<uint8_t> first_rails(const CommunicatorOptions& options) {
  std::vector<uint8_t> rails;
  if (options.grid.empty()) {
    if (options.first_rail >= 0) {
      rails.assign(static_cast<size_t>(options.num_ranks),
                   static_cast<uint8_t>(options.first_rail));
    }
    return rails;
  }
  const topology::Grid grid(options.grid);
  const uint32_t own = options.host_of_rank[static_cast<size_t>(options.rank)];
  for (uint32_t host : options.host_of_rank) {
    rails.push_back(static_cast<uint8_t>(grid.lowest_difference(own, host)));
  }
  return rails;
}

Status check_grid(const CommunicatorOptions& options) {
  if (options.grid.empty()) return Status();
  uint64_t num_hosts = 1;
  for (uint32_t size : options.grid) num_hosts = size == 0 ? 0 : num_hosts * size;
  const auto& hosts = options.host_of_rank;
  const bool fits = num_hosts > 0 && hosts.size() == static_cast<size_t>(options.num_ranks) &&
                    *std::max_element(hosts.begin(), hosts.end()) < num_hosts &&
                    options.grid.size() <= options.rails.size();
  if (fits) return Status();
  return Status(StatusCode::invalid_argument, "a grid of ", num_hosts, " hosts and ",
                options.grid.size(), " levels does not fit ", hosts.size(), " host numbers of ",
                options.num_ranks, " ranks with ", options.rails.size(), " rails");
}

}  // namespace dmlcomm::engine
