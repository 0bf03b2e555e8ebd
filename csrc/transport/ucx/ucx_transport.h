// UcxTransport: UCX between ranks, over all their rails, and inside a host. Addresses, handshakes,
// carriers and new connections are those of TCP; only the bytes of channels go over UCX, which
// chooses among what it has on the rail's NIC (docs/ucx.md).
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "transport/tcp/tcp_transport.h"
#include "transport/ucx/ucx_rail.h"

namespace dmlcomm::transport::ucx {

class UcxTransport final : public tcp::TcpTransport {
 public:
  UcxTransport(const Job& job, EventLoop& loop) : TcpTransport(job), job_(job), loop_(loop) {}

  Status meet(const std::vector<int>& peers, Rendezvous& rendezvous, Admission& admission) override;
  Result<std::unique_ptr<Channel>> open(int peer, size_t rail, bool is_alone,
                                        Handshake& handshake) override;
  bool needs_poll() const override { return true; }
  void poll() override;
  bool arm() override;
  std::string description() const override;

 private:
  Status open_rails();
  uint64_t key_of(int peer, uint64_t connection) const;

  const Job& job_;
  EventLoop& loop_;
  std::vector<std::unique_ptr<UcxRail>> rails_;      // that to ranks of this host comes last
  std::vector<std::vector<std::string>> addresses_;  // by rank and rail
};

}  // namespace dmlcomm::transport::ucx
