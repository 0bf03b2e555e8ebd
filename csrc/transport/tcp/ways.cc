#include "transport/tcp/ways.h"

#include <algorithm>
#include <utility>

namespace dmlcomm::transport::tcp {
namespace {

constexpr uint32_t kForwarded = 0;
// More ways than these are not tried.
constexpr uint32_t kMaxWays = 32;

}  // namespace

std::optional<uint32_t> Ways::relayed_level(const Lane& lane) const {
  if (!network_) return std::nullopt;
  const int peer = global_rank(lane.peer);
  const auto own = network_->own_level_of(lane.own_address);
  const auto theirs = network_->level_of(peer, (*lane.peer_rails)[lane.rail].address);
  if (!own || !theirs) return std::nullopt;  // no NICs of the grid
  const bool is_direct = own == theirs && network_->are_neighbours(peer, *own);
  return is_direct ? std::nullopt : own;
}

uint32_t Ways::num_ways(uint32_t level) const {
  return std::min(kMaxWays, network_->num_routes(level) + 1);
}

// The best way that is not among those that were tried.
std::optional<uint32_t> Ways::next(const Lane& lane, uint32_t level, uint64_t tried) const {
  const auto is_left = [&](uint32_t way) { return (tried >> way & 1) == 0; };
  const bool forwards = network_->forwarding() != RelayNetwork::Forwarding::fails;
  if (forwards && is_left(kForwarded)) return kForwarded;
  const uint32_t num_routes = num_ways(level) - 1;
  for (uint32_t i = 0; i < num_routes; ++i) {
    const uint32_t index = static_cast<uint32_t>(lane.number_on_rail + i) % num_routes;
    if (is_left(index + 1) && relayed_way(lane, level, index)) return index + 1;
  }
  return is_left(kForwarded) ? std::optional(kForwarded) : std::nullopt;
}

std::optional<Ways::Way> Ways::relayed_way(const Lane& lane, uint32_t level, uint32_t index) const {
  const int peer = global_rank(lane.peer);
  auto route = network_->route(peer, level, index);
  if (!route || route->ranks.empty()) return std::nullopt;
  const auto& rails = *lane.peer_rails;
  const auto end = std::find_if(rails.begin(), rails.end(), [&](const RailEndpoint& rail) {
    return network_->level_of(peer, rail.address) == route->last_level;
  });
  if (end == rails.end()) return std::nullopt;
  Way way;
  way.relays = std::move(route->ranks);
  way.hops = std::move(route->hops);
  way.hops.push_back({end->address, end->port});
  const RelayPreamble preamble{network_->secret(), {way.hops.begin() + 1, way.hops.end()}};
  way.preamble = encode(preamble);
  return way;
}

Ways::Way Ways::choose(const Lane& lane) {
  const std::optional<uint32_t> level = relayed_level(lane);
  if (!level) return {};
  State& state = states_[{lane.peer, lane.index}];
  if (!state.way) state.way = next(lane, *level, state.tried).value_or(kForwarded);
  Way way;
  way.may_be_forwarded = *state.way == kForwarded;
  if (way.may_be_forwarded) return way;
  return relayed_way(lane, *level, *state.way - 1).value_or(way);
}

bool Ways::has_other(const Lane& lane, bool* refused) {
  const std::optional<uint32_t> level = relayed_level(lane);
  if (!level) return false;
  State& state = states_[{lane.peer, lane.index}];
  const uint32_t failed = state.way.value_or(kForwarded);
  state.tried |= uint64_t{1} << failed;
  if (failed == kForwarded) {
    // Another host may have refused, which the packets were never meant for.
    state.kernels_failed = !*refused && !network_->are_neighbours(global_rank(lane.peer));
    *refused = false;
  }
  state.way = *refused ? std::nullopt : next(lane, *level, state.tried);
  if (state.way) return true;
  state.tried = 0;
  return false;
}

void Ways::succeeded(const Lane& lane) {
  if (!relayed_level(lane)) return;
  State& state = states_[{lane.peer, lane.index}];
  state.tried = 0;
  // Relays have led there from the same NIC: neither that was dead nor the peer.
  const bool only_relays_work = std::exchange(state.kernels_failed, false);
  if (state.way == kForwarded) {
    network_->forwarding_worked();
  } else if (only_relays_work) {
    network_->forwarding_failed();
  }
}

}  // namespace dmlcomm::transport::tcp
