#include "transport/tcp/tcp_transport.h"

#include <algorithm>
#include <utility>

#include "base/str_cat.h"
#include "transport/admission.h"
#include "transport/tcp/device.h"
#include "transport/tcp/tcp_channel.h"

namespace dmlcomm::transport::tcp {
namespace {

// Bound on the bytes that the kernel queues beyond those on their way, if it is limited.
constexpr size_t kQueueBytes = 512 * 1024;
// Of connections that share the work: none takes more than it will soon carry.
constexpr size_t kShortQueueBytes = 64 * 1024;

const RailAddress kLoopback{"lo", "127.0.0.1"};

}  // namespace

Status TcpTransport::listen_on_rails(Admission& admission) {
  const bool any_remote = job_.num_ranks_on_host() < job_.num_ranks;
  std::vector<RailAddress> rails = any_remote ? job_.rails : std::vector<RailAddress>();
  if (any_remote && rails.empty()) {
    return Status(StatusCode::invalid_argument,
                  "the ranks are on several hosts, but no network interface of this one is usable; "
                  "`dmlcomm doctor` says why, DMLCOMM_SOCKET_IFNAME chooses");
  }
  if (job_.config.transport == TransportChoice::tcp) rails.push_back(kLoopback);
  for (const RailAddress& rail : rails) {
    Result<Listener> listener =
        listen_on(rail.address, {job_.config.port_first, job_.config.port_last}, socket_options());
    if (!listener.ok()) return listener.status();
    own_endpoints_.push_back({rail.interface, rail.address, listener->port});
    DMLCOMM_RETURN_IF_ERROR(admission.listen(std::move(listener->fd), *this));
  }
  return Status();
}

// Ranks that wait for the rails of one that has none are told why.
Status TcpTransport::meet(const std::vector<int>& peers, Rendezvous& rendezvous,
                          Admission& admission) {
  const Status listening = listen_on_rails(admission);
  Result<std::vector<std::string>> texts = rendezvous.exchange(
      "rails", job_.rank, job_.num_ranks,
      listening.ok() ? encode_rails(own_endpoints_) : encode_no_rails(listening.message()),
      job_.timeout);
  DMLCOMM_RETURN_IF_ERROR(listening);
  if (!texts.ok()) return texts.status();
  endpoints_.resize(static_cast<size_t>(job_.num_ranks));
  for (int peer : peers) {
    Result<std::vector<RailEndpoint>> endpoints = decode_rails((*texts)[peer]);
    if (!endpoints.ok()) {
      return Status(endpoints.status().code(),
                    str_cat("rank ", peer, " on host ", job_.hosts[peer].host_name, ": ",
                            endpoints.status().message()));
    }
    // Loopback leads to the own host only, and there nothing else is needed.
    const bool is_local = job_.same_host(peer);
    std::erase_if(*endpoints,
                  [&](const RailEndpoint& e) { return is_loopback(e.address) != is_local; });
    endpoints_[peer] = std::move(*endpoints);
  }
  return Status();
}

bool TcpTransport::accepts(int fd) {
  tune(fd, socket_options());
  return true;
}

// On the own host there is one way.
size_t TcpTransport::num_rails(int peer) const {
  if (job_.same_host(peer)) return 1;
  return std::min(job_.rails.size(), endpoints_[peer].size());
}

RailAddress TcpTransport::own_end(int peer, size_t rail) const {
  return job_.same_host(peer) ? kLoopback : job_.rails[rail];
}

std::string TcpTransport::route(int peer, size_t rail) const {
  const RailAddress own = own_end(peer, rail);
  const RailEndpoint& to = endpoints_[peer][rail];
  return str_cat("connect from ", own.address, " (", own.interface, ") to ", to.address, " port ",
                 to.port, " (", to.interface, ")");
}

std::string TcpTransport::advice() const {
  return "; `dmlcomm doctor` lists interfaces, DMLCOMM_SOCKET_IFNAME chooses";
}

Result<UniqueFd> TcpTransport::connect(int peer, size_t rail) {
  const RailAddress own = own_end(peer, rail);
  if (num_rails(peer) > 1 && !has_carrier(own.interface)) {
    return Status(StatusCode::io_error, str_cat(route(peer, rail), ": no carrier"));
  }
  const RailEndpoint& to = endpoints_[peer][rail];
  return begin_connect(own.interface, own.address, to.address, to.port, socket_options());
}

// A rank that begins to send fills the queue before it does anything else, which delays those that
// wait for its core: 9 hosts of 200 Mb/s on 2 cores, which filled 4 MiB first, took 7187 ms for 100
// MB, not 7176. With cores for all a long queue keeps the card busy while they reduce.
Result<std::unique_ptr<Channel>> TcpTransport::open(int peer, size_t rail, bool is_alone,
                                                    Handshake& handshake) {
  UniqueFd fd = handshake.take_fd();
  const bool is_local = job_.same_host(peer);
  tune(fd.get(), socket_options());
  if (!is_alone) {
    limit_queue(fd.get(), kShortQueueBytes);
  } else if (!is_local && job_.num_ranks_on_machine() > job_.own_host().num_cores) {
    limit_queue(fd.get(), kQueueBytes);
  }
  const std::string interface = own_end(peer, rail).interface;
  if (!is_local && !handshake.outgoing()) {
    hold_to_card(fd.get(), interface, endpoints_[peer][rail].address);
  }
  return std::unique_ptr<Channel>(std::make_unique<TcpChannel>(
      std::move(fd), str_cat("tcp to ", job_.hosts[peer].host_name, " over ", interface)));
}

std::vector<Transport::RailChange> TcpTransport::changed_rails() {
  std::vector<RailChange> changes;
  for (size_t rail = 0; rail < job_.rails.size(); ++rail) {
    const bool before = has_carrier_[rail];
    has_carrier_[rail] = has_carrier(job_.rails[rail].interface);
    if (has_carrier_[rail] != before) changes.push_back({rail, has_carrier_[rail]});
  }
  return changes;
}

std::string TcpTransport::description() const {
  std::string text;
  for (const RailEndpoint& rail : own_endpoints_) {
    text += str_cat(", ", rail.interface, " ", rail.address, ":", rail.port);
  }
  return text;
}

}  // namespace dmlcomm::transport::tcp
