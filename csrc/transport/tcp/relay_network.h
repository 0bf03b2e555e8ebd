// RelayNetwork: what this process knows of the hosts of its job on a grid, and of the relay
// services there: the ways from this rank to any other one. Made by a group of all ranks, constant
// from then on. Groups of some ranks use the newest one that lives.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "topology/grid.h"
#include "transport/address.h"
#include "transport/relay_preamble.h"
#include "transport/tcp/relay_service.h"

namespace dmlcomm::transport::tcp {

// The service of this process, which all who hold it share; made if there is none.
Result<std::shared_ptr<RelayService>> shared_relay_service(PortRange ports,
                                                           const SocketOptions& options);

class RelayNetwork {
 public:
  struct Options {
    topology::Grid grid;
    std::vector<uint32_t> host_of_rank;  // ranks are those of the job
    int rank = 0;
    // By rank, the NIC of each level; none of ranks that are on this host. Ports of relay services
    // are 0 where there is none.
    std::vector<std::vector<RailEndpoint>> levels;
    RelayService::Secret secret{};
  };

  // `duty`: what this rank does for the others while the network lives; null if it cannot.
  RelayNetwork(Options options, std::unique_ptr<RelayDuty> duty);

  static void publish(const std::shared_ptr<RelayNetwork>& network);
  // The last that was published of those that live, or null.
  static std::shared_ptr<RelayNetwork> newest();

  // The level of the NIC of a rank that has this address.
  std::optional<uint32_t> level_of(int rank, const std::string& address) const;
  std::optional<uint32_t> own_level_of(const std::string& address) const {
    return level_of(options_.rank, address);
  }
  bool are_neighbours(int peer, uint32_t level) const;
  // Whether they share any switch.
  bool are_neighbours(int peer) const;

  // Routes to `peer` that begin on `level` of this host; see topology/relay_route.h.
  uint32_t num_routes(uint32_t level) const;
  struct Route {
    std::vector<int> ranks;      // that relay, one per hop but the last
    std::vector<RelayHop> hops;  // their services
    uint32_t last_level = 0;     // on which the peer is reached
  };
  // Nothing if a host on the way has no service.
  std::optional<Route> route(int peer, uint32_t level, uint32_t index) const;
  const RelayService::Secret& secret() const { return options_.secret; }

  // What is known of the kernels' own routes to hosts that share no switch with this one.
  enum class Forwarding { unknown, works, fails };
  Forwarding forwarding() const { return forwarding_.load(); }
  // Once they have worked a failure is that of a cable.
  void forwarding_worked() { forwarding_.store(Forwarding::works); }
  void forwarding_failed();

 private:
  std::optional<int> relay_on(uint32_t host, uint32_t level, size_t choice) const;
  uint32_t host(int rank) const { return options_.host_of_rank[static_cast<size_t>(rank)]; }
  const std::vector<RailEndpoint>& levels(int rank) const {
    return options_.levels[static_cast<size_t>(rank)];
  }

  const Options options_;
  const std::unique_ptr<RelayDuty> duty_;
  std::vector<std::vector<int>> ranks_of_host_;
  std::atomic<Forwarding> forwarding_{Forwarding::unknown};
};

}  // namespace dmlcomm::transport::tcp
