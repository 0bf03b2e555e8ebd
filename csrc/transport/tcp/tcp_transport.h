// TcpTransport: TCP between hosts, over all their rails, and over loopback inside a host where TCP
// was asked for. Rail i of this host reaches rail i of the peer. On a grid ranks relay connections
// for each other (ways.h).
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "transport/tcp/socket.h"
#include "transport/tcp/ways.h"
#include "transport/transport.h"

namespace dmlcomm::transport::tcp {

class TcpTransport : public Transport {
 public:
  explicit TcpTransport(const Job& job) : job_(job), has_carrier_(job.rails.size(), true) {}

  bool reaches(int) const override { return true; }
  Status meet(const std::vector<int>& peers, Rendezvous& rendezvous, Admission& admission) override;
  bool accepts(int fd) override;
  size_t num_rails(int peer) const override;
  Result<Attempt> connect(int peer, size_t lane) override;
  bool has_other_way(int peer, size_t lane, bool* refused) override;
  std::string route(int peer, size_t lane) override;
  void close() override;
  std::string advice() const override;
  Result<std::unique_ptr<Channel>> open(int peer, size_t rail, bool is_alone,
                                        Handshake& handshake) override;
  std::vector<RailChange> changed_rails() override;
  std::string description() const override;

 protected:
  // By this rank or by the peer.
  void check_payloads_if_asked(const Handshake& handshake, Channel& channel) const;

 private:
  SocketOptions socket_options() const {
    return {job_.config.tcp_buffer_bytes, job_.config.tcp_congestion};
  }
  Status listen_on_rails(Admission& admission);
  void begin_to_relay();
  void learn_ways();
  std::shared_ptr<RelayNetwork> whole_network(const std::vector<int>& global_ranks);
  Ways::Lane lane_to(int peer, size_t lane) const;
  // Of a connection to `peer`: loopback inside a host.
  RailAddress own_end(int peer, size_t rail) const;

  const Job& job_;
  std::vector<RailEndpoint> own_endpoints_;
  std::vector<std::vector<RailEndpoint>> endpoints_;  // by rank
  std::vector<bool> has_carrier_;                     // of the own rails
  std::unique_ptr<RelayDuty> relay_duty_;             // until the network has it
  std::optional<Ways> ways_;                          // after meet()
};

}  // namespace dmlcomm::transport::tcp
