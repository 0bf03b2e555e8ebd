// Ways: how each lane gets to a peer on a grid. A lane between neighbours, over the switch that
// joins them, has one way. Others have several: the kernels' routes, where hosts forward, and ways
// through relays of other ranks (relay_service.h). The kernels' come first, unless they are known
// to fail. A way that has led there is kept until it fails.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "transport/tcp/relay_network.h"

namespace dmlcomm::transport::tcp {

class Ways {
 public:
  // Without a network every lane has one way. `global_ranks`: by rank of the group, in the job.
  Ways(std::shared_ptr<RelayNetwork> network, std::vector<int> global_ranks)
      : network_(std::move(network)), global_ranks_(std::move(global_ranks)) {}

  // A lane to `peer`, from an own NIC to one of the peer.
  struct Lane {
    int peer = 0;
    size_t index = 0;
    size_t number_on_rail = 0;  // of the lanes of its rail: these prefer different ways
    std::string own_address;
    const std::vector<RailEndpoint>* peer_rails = nullptr;  // where it listens
    size_t rail = 0;
  };
  struct Way {
    std::vector<RelayHop> hops;  // relays, and the peer; empty: straight to the peer
    std::vector<int> relays;     // their ranks in the job
    std::vector<std::byte> preamble;
    bool may_be_forwarded = false;  // by kernels, if they do that
  };
  // The way that the next attempt takes.
  Way choose(const Lane& lane);
  // The attempt came to nothing; `refused`, by who should be the peer. Whether another way is worth
  // an attempt at once. If not, `refused` says whether the peer itself has refused.
  bool has_other(const Lane& lane, bool* refused);
  void succeeded(const Lane& lane);

 private:
  // Way 0 is that of the kernels, and way i + 1 the i-th route of the network.
  struct State {
    std::optional<uint32_t> way;
    uint64_t tried = 0;           // bits of ways that have failed, since one was chosen from all
    bool kernels_failed = false;  // to forward, since then
  };

  // The level of the own NIC, if there are ways through relays.
  std::optional<uint32_t> relayed_level(const Lane& lane) const;
  uint32_t num_ways(uint32_t level) const;
  std::optional<uint32_t> next(const Lane& lane, uint32_t level, uint64_t tried) const;
  std::optional<Way> relayed_way(const Lane& lane, uint32_t level, uint32_t index) const;
  int global_rank(int peer) const { return global_ranks_[static_cast<size_t>(peer)]; }

  const std::shared_ptr<RelayNetwork> network_;
  const std::vector<int> global_ranks_;
  std::map<std::pair<int, size_t>, State> states_;  // by peer and lane
};

}  // namespace dmlcomm::transport::tcp
