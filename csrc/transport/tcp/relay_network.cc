#include "transport/tcp/relay_network.h"

#include <algorithm>
#include <mutex>
#include <utility>

#include "base/fork_guard.h"
#include "topology/relay_route.h"

namespace dmlcomm::transport::tcp {
namespace {

// What the groups of this process share; it owns nothing.
struct Registry {
  std::mutex mutex;
  // Guarded by mutex. What was made before a fork is the parent's.
  int fork_generation = 0;
  std::weak_ptr<RelayService> service;
  std::vector<std::weak_ptr<RelayNetwork>> networks;

  void forget_parent() {
    if (std::exchange(fork_generation, dmlcomm::fork_generation()) == fork_generation) return;
    service.reset();
    networks.clear();
  }
};

Registry& registry() {
  static auto* instance = new Registry;  // groups may be closed after static destructors
  return *instance;
}

}  // namespace

Result<std::shared_ptr<RelayService>> shared_relay_service(PortRange ports,
                                                           const SocketOptions& options) {
  std::lock_guard lock(registry().mutex);
  registry().forget_parent();
  if (std::shared_ptr<RelayService> living = registry().service.lock()) return living;
  Result<std::shared_ptr<RelayService>> made = RelayService::create(ports, options);
  if (made.ok()) registry().service = *made;
  return made;
}

RelayNetwork::RelayNetwork(Options options, std::unique_ptr<RelayDuty> duty)
    : options_(std::move(options)),
      duty_(std::move(duty)),
      ranks_of_host_(options_.grid.num_hosts()) {
  for (size_t rank = 0; rank < options_.host_of_rank.size(); ++rank) {
    ranks_of_host_[options_.host_of_rank[rank]].push_back(static_cast<int>(rank));
  }
}

void RelayNetwork::publish(const std::shared_ptr<RelayNetwork>& network) {
  std::lock_guard lock(registry().mutex);
  registry().forget_parent();
  std::erase_if(registry().networks, [](const auto& known) { return known.expired(); });
  registry().networks.push_back(network);
}

std::shared_ptr<RelayNetwork> RelayNetwork::newest() {
  std::lock_guard lock(registry().mutex);
  registry().forget_parent();
  const auto& networks = registry().networks;
  for (auto it = networks.rbegin(); it != networks.rend(); ++it) {
    if (std::shared_ptr<RelayNetwork> network = it->lock()) return network;
  }
  return nullptr;
}

std::optional<uint32_t> RelayNetwork::level_of(int rank, const std::string& address) const {
  if (rank < 0 || static_cast<size_t>(rank) >= options_.levels.size()) return std::nullopt;
  const auto& own = levels(rank);
  const auto it = std::find_if(own.begin(), own.end(),
                               [&](const RailEndpoint& end) { return end.address == address; });
  const auto level = static_cast<uint32_t>(it - own.begin());
  return level < options_.grid.num_levels() ? std::optional(level) : std::nullopt;
}

bool RelayNetwork::are_neighbours(int peer, uint32_t level) const {
  return options_.grid.are_neighbours(host(options_.rank), host(peer), level);
}

bool RelayNetwork::are_neighbours(int peer) const {
  for (uint32_t level = 0; level < options_.grid.num_levels(); ++level) {
    if (are_neighbours(peer, level)) return true;
  }
  return false;
}

uint32_t RelayNetwork::num_routes(uint32_t level) const {
  return topology::num_relay_routes(options_.grid, level);
}

std::optional<RelayNetwork::Route> RelayNetwork::route(int peer, uint32_t level,
                                                       uint32_t index) const {
  auto hops = topology::relay_route(options_.grid, host(options_.rank), host(peer), level, index);
  Route route;
  route.last_level = hops.back().level;
  hops.pop_back();
  // The ranks of a host share the work.
  const size_t choice = static_cast<size_t>(options_.rank) + static_cast<size_t>(peer) + index;
  for (const topology::GridHop& hop : hops) {
    const std::optional<int> relay = relay_on(hop.host, hop.level, choice);
    if (!relay) return std::nullopt;
    const RailEndpoint& end = levels(*relay)[hop.level];
    route.ranks.push_back(*relay);
    route.hops.push_back({end.address, end.relay_port});
  }
  return route;
}

std::optional<int> RelayNetwork::relay_on(uint32_t host, uint32_t level, size_t choice) const {
  const std::vector<int>& ranks = ranks_of_host_[host];
  for (size_t i = 0; i < ranks.size(); ++i) {
    const int rank = ranks[(choice + i) % ranks.size()];
    if (level < levels(rank).size() && levels(rank)[level].relay_port != 0) return rank;
  }
  return std::nullopt;
}

void RelayNetwork::forwarding_failed() {
  Forwarding expected = Forwarding::unknown;
  forwarding_.compare_exchange_strong(expected, Forwarding::fails);
}

}  // namespace dmlcomm::transport::tcp
