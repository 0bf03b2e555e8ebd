#include "topology/topology.h"

#include <map>
#include <set>
#include <utility>

namespace dmlcomm::topology {
namespace {

// A wake-up plus one process_vm_readv, which copies about 8 GB/s into warm memory.
constexpr Link kSingleCopyLink{2e-6, 1e-6, 1 / 8e9};
// Loopback TCP: a send and a receive call, and the sleeper's wake-up; about 2.5 GB/s per direction.
constexpr Link kLoopbackLink{20e-6, 5e-6, 1 / 2.5e9};
// The same calls, a NIC and a switch.
constexpr double kNetworkAlpha = 30e-6;
constexpr double kNetworkOverhead = 5e-6;
// Another NIC and switch, and the kernel's forwarding; no call and no wake-up.
constexpr double kRelay = 10e-6;
// Connections that meet at a switch port lose packets, and wait for each other's losses. 9 hosts at
// 200 Mb/s took 1.15 times as long (12.5 MB) to 1.6 times (1 MB) with all pairs at once as in a
// ring.
constexpr double kNetworkContention = 1.2;
// Between hosts of one kernel whose ranks outnumber its cores: the cores do the work of both sides,
// which sleep and are woken, and of the network; and who is woken waits for a core first. For 1 KiB
// 9 hosts on 2 cores took 1.1 to 1.3 ms with a tree, in which few want a core at a time, and 1.4 ms
// with recursive doubling. If many messages come at once fewer ranks sleep: each of the 16 of
// `direct` took 55 us.
constexpr double kSharedKernelOverhead = 55e-6;
constexpr double kSharedKernelAlpha = 120e-6;
// And for each byte: of 64 KiB the same tree took 1.3 to 2 ms.
constexpr double kSharedKernelByte = 0.8e-9;
// Over loopback, for each byte and core: 4 ranks on 2 cores took 0.27 ns of both for each byte that
// passed from one to the other.
constexpr double kSharedLoopbackByte = 0.27e-9;
// Without known rates, Gigabit Ethernet: only the ratio of latency and bandwidth matters for
// the choice.
constexpr double kAssumedBitsPerSecond = 1e9;
// Adding or copying out of cache by one core.
constexpr double kGamma = 1 / 10e9;

bool is_legal(const Link& link) {
  return link.alpha_s >= 0 && link.overhead_s >= 0 && link.beta_s_per_byte >= 0;
}

Status check_grid(const Topology& topology) {
  uint64_t product = 1;
  for (uint32_t size : topology.grid) {
    if (size < 2)
      return {StatusCode::invalid_argument, "a level of a grid needs two hosts or more"};
    product *= size;
    if (product > topology.num_ranks()) break;
  }
  const std::set<uint32_t> hosts(topology.host_of_rank.begin(), topology.host_of_rank.end());
  if (hosts.size() != product || *hosts.rbegin() + uint64_t{1} != product) {
    return {StatusCode::invalid_argument, "the grid's levels do not multiply to its ", hosts.size(),
            " hosts, or these are not numbered from 0"};
  }
  if (topology.grid.size() == topology.num_rails) return {};
  return {StatusCode::invalid_argument, "a grid of ",
          topology.grid.size(),         " levels has ",
          topology.num_rails,           " rails, not one per level"};
}

}  // namespace

double Topology::slowest_rail_beta() const {
  double slowest = 0;
  for (uint32_t rail = 0; rail < num_rails; ++rail) slowest = std::max(slowest, rail_beta(rail));
  return slowest;
}

double Topology::striped_beta() const {
  double bytes_per_s = 0;
  for (uint32_t rail = 0; rail < num_rails; ++rail) bytes_per_s += 1 / rail_beta(rail);
  return 1 / bytes_per_s;
}

uint32_t Topology::num_hosts() const {
  return static_cast<uint32_t>(std::set<uint32_t>(host_of_rank.begin(), host_of_rank.end()).size());
}

bool Topology::is_one_host() const {
  return std::all_of(host_of_rank.begin(), host_of_rank.end(),
                     [this](uint32_t host) { return host == host_of_rank.front(); });
}

uint32_t Topology::max_ranks_per_host() const {
  std::map<uint32_t, uint32_t> ranks;
  uint32_t most = 0;
  for (uint32_t host : host_of_rank) most = std::max(most, ++ranks[host]);
  return most;
}

uint32_t Topology::ranks_kept_together() const {
  if (ranks_per_core <= 1 || single_copy || !is_one_host()) return 1;
  const auto together = static_cast<uint32_t>(ranks_per_core);
  return together == ranks_per_core && num_ranks() % together == 0 ? together : 1;
}

Status validate(const Topology& topology) {
  if (topology.num_ranks() == 0 || topology.num_rails == 0) {
    return {StatusCode::invalid_argument, "a topology needs ranks and rails, and has ",
            topology.num_ranks(), " and ", topology.num_rails};
  }
  if (!is_legal(topology.intra_host) || !is_legal(topology.inter_host) ||
      !(topology.gamma_s_per_byte >= 0) || !(topology.relay_s >= 0) ||
      !(topology.ranks_per_core >= 0) || !(topology.core_s_per_byte >= 0) ||
      !(topology.contention >= 1)) {
    return {StatusCode::invalid_argument,
            "a topology's prices must not be negative, and its contention not below 1"};
  }
  const std::vector<double>& betas = topology.rail_betas_s_per_byte;
  const bool are_legal = std::all_of(betas.begin(), betas.end(), [](double b) { return b >= 0; });
  if (!are_legal || (!betas.empty() && betas.size() != topology.num_rails)) {
    return {StatusCode::invalid_argument, "a topology of ", topology.num_rails,
            " rails has prices of ",      betas.size(),     " rails, or a negative one"};
  }
  return topology.grid.empty() ? Status() : check_grid(topology);
}

Topology single_host(uint32_t num_ranks, bool single_copy) {
  Topology topology;
  topology.host_of_rank.assign(num_ranks, 0);
  topology.intra_host = single_copy ? kSingleCopyLink : kLoopbackLink;
  topology.inter_host = topology.intra_host;
  topology.single_copy = single_copy;
  topology.gamma_s_per_byte = kGamma;
  return topology;
}

Topology flat_network(std::vector<uint32_t> host_of_rank, uint32_t num_rails,
                      double bits_per_second, bool single_copy) {
  Topology topology = single_host(0, single_copy);
  topology.host_of_rank = std::move(host_of_rank);
  topology.inter_host = {kNetworkAlpha, kNetworkOverhead, 8 / bits_per_second};
  topology.num_rails = num_rails;
  topology.contention = kNetworkContention;
  return topology;
}

Topology grid_network(std::vector<uint32_t> host_of_rank, std::vector<uint32_t> sizes,
                      double bits_per_second, bool single_copy) {
  const auto num_rails = static_cast<uint32_t>(sizes.size());
  Topology topology =
      flat_network(std::move(host_of_rank), num_rails, bits_per_second, single_copy);
  topology.grid = std::move(sizes);
  topology.relay_s = kRelay;
  return topology;
}

Topology job_network(std::vector<uint32_t> host_of_rank, uint32_t num_rails,
                     std::vector<uint32_t> grid, const std::vector<uint64_t>& bits_per_second) {
  Topology topology =
      grid.empty()
          ? flat_network(std::move(host_of_rank), num_rails, kAssumedBitsPerSecond, true)
          : grid_network(std::move(host_of_rank), std::move(grid), kAssumedBitsPerSecond, true);
  return at_rates(std::move(topology), bits_per_second);
}

Topology at_rates(Topology topology, const std::vector<uint64_t>& bits_per_second) {
  if (bits_per_second.size() < topology.num_rails) return topology;
  std::vector<double>& betas = topology.rail_betas_s_per_byte;
  betas.clear();
  for (uint32_t rail = 0; rail < topology.num_rails; ++rail) {
    betas.push_back(8 / static_cast<double>(bits_per_second[rail]));
  }
  topology.inter_host.beta_s_per_byte = *std::max_element(betas.begin(), betas.end());
  return topology;
}

Topology on_shared_cores(Topology topology, double ranks_per_core) {
  if (ranks_per_core <= 1) return topology;
  topology.ranks_per_core = ranks_per_core;
  if (topology.is_one_host()) {
    if (!topology.single_copy) topology.core_s_per_byte = kSharedLoopbackByte;
    return topology;
  }
  topology.inter_host.alpha_s = kSharedKernelAlpha;
  topology.inter_host.overhead_s = kSharedKernelOverhead;
  topology.core_s_per_byte = kSharedKernelByte;
  return topology;
}

}  // namespace dmlcomm::topology
