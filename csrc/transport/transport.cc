#include "transport/transport.h"

#include <algorithm>

#include "transport/shm/shm_transport.h"
#include "transport/tcp/tcp_transport.h"
#include "transport/ucx/ucx_transport.h"

namespace dmlcomm::transport {

int Job::num_ranks_on_host() const {
  return static_cast<int>(std::count_if(hosts.begin(), hosts.end(), [this](const HostAddress& h) {
    return h.host_id == own_host().host_id;
  }));
}

int Job::num_ranks_on_machine() const {
  const std::string own = own_host().machine_id();
  return static_cast<int>(std::count_if(
      hosts.begin(), hosts.end(), [&](const HostAddress& h) { return h.machine_id() == own; }));
}

bool Job::all_tune() const {
  return std::all_of(hosts.begin(), hosts.end(), [](const HostAddress& h) { return h.tunes; });
}

bool Job::all_probe() const {
  return std::all_of(hosts.begin(), hosts.end(), [](const HostAddress& h) { return h.probes; });
}

std::vector<std::unique_ptr<Transport>> make_transports(const Job& job, EventLoop& loop) {
  std::vector<std::unique_ptr<Transport>> transports;
  transports.push_back(std::make_unique<shm::ShmTransport>(job, loop));
  if (job.config.transport == TransportChoice::ucx) {
    transports.push_back(std::make_unique<ucx::UcxTransport>(job, loop));
  } else {
    transports.push_back(std::make_unique<tcp::TcpTransport>(job));
  }
  return transports;
}

}  // namespace dmlcomm::transport
