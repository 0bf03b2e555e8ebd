#include "transport/tcp/tcp_transport.h"

#include <algorithm>
#include <set>
#include <utility>

#include "base/log.h"
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

// Relays answer within the time of their hops; beside that they have to get a core.
constexpr double kRelayTurnS = 2.0;

}  // namespace

Status TcpTransport::listen_on_rails(Admission& admission) {
  const bool any_remote = job_.num_ranks_on_host() < job_.num_ranks;
  std::vector<RailAddress> rails = any_remote ? job_.rails : std::vector<RailAddress>();
  if (any_remote && rails.empty()) {
    return Status(StatusCode::invalid_argument,
                  "the ranks are on several hosts, but no network interface of this one is usable; "
                  "`dmlcomm doctor` says why, DMLCOMM_SOCKET_IFNAME chooses");
  }
  for (const RailAddress& rail : rails) {
    DMLCOMM_RETURN_IF_ERROR(check_mark(job_.config.ticket_mark, rail.address));
  }
  if (any_remote) begin_to_relay();
  if (!job_.config.shares_memory()) rails.push_back(kLoopback);
  const PortWait port_wait{job_.config.peer_timeout_s};
  for (const RailAddress& rail : rails) {
    Result<Listener> listener = listen_on(
        rail.address, {job_.config.port_first, job_.config.port_last}, socket_options(), port_wait);
    if (!listener.ok()) return listener.status();
    own_endpoints_.push_back({rail.interface, rail.address, listener->port, 0});
    DMLCOMM_RETURN_IF_ERROR(admission.listen(std::move(listener->fd), *this));
    if (!relay_duty_ || own_endpoints_.size() > job_.grid.size()) continue;
    const Result<uint16_t> port = relay_duty_->listen(rail.address);
    if (port.ok()) own_endpoints_.back().relay_port = *port;
    if (!port.ok()) log_warning("this rank relays for no others: ", port.status().message());
  }
  return Status();
}

// Before the others know the address, so that nobody is refused. All hosts of one level share a
// switch: there is nothing to relay.
void TcpTransport::begin_to_relay() {
  if (job_.relaying != Relaying::whole_job || job_.grid.size() < 2) return;
  Result<std::shared_ptr<RelayService>> service =
      shared_relay_service({job_.config.port_first, job_.config.port_last}, socket_options());
  if (!service.ok()) {
    return log_warning("this rank relays for no others: ", service.status().message());
  }
  relay_duty_ = std::make_unique<RelayDuty>(std::move(*service), job_.key.relay_secret());
}

void TcpTransport::learn_ways() {
  std::vector<int> global_ranks = job_.global_ranks;
  for (int rank = static_cast<int>(global_ranks.size()); rank < job_.num_ranks; ++rank) {
    global_ranks.push_back(rank);
  }
  std::shared_ptr<RelayNetwork> network;
  if (job_.relaying == Relaying::part) network = RelayNetwork::newest();
  if (job_.relaying == Relaying::whole_job && job_.grid.size() > 1) {
    network = whole_network(global_ranks);
    RelayNetwork::publish(network);
  }
  ways_.emplace(std::move(network), std::move(global_ranks));
}

// Groups of all ranks may have them in any order; others know the network by ranks of the job.
std::shared_ptr<RelayNetwork> TcpTransport::whole_network(const std::vector<int>& global_ranks) {
  RelayNetwork::Options options{
      topology::Grid(job_.grid), {}, global_ranks[job_.rank], {}, job_.key.relay_secret()};
  options.host_of_rank.resize(global_ranks.size());
  options.levels.resize(global_ranks.size());
  std::set<std::string> addresses;
  for (int rank = 0; rank < job_.num_ranks; ++rank) {
    const auto in_job = static_cast<size_t>(global_ranks[rank]);
    options.host_of_rank[in_job] = job_.host_of_rank[rank];
    options.levels[in_job] = rank == job_.rank ? own_endpoints_ : endpoints_[rank];
    for (const RailEndpoint& end : endpoints_[rank]) addresses.insert(end.address);
  }
  if (relay_duty_) relay_duty_->allow(addresses);
  return std::make_shared<RelayNetwork>(std::move(options), std::move(relay_duty_));
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
  learn_ways();
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

Ways::Lane TcpTransport::lane_to(int peer, size_t lane) const {
  const size_t rails = num_rails(peer);
  const size_t rail = lane % rails;
  return {peer, lane, lane / rails, own_end(peer, rail).address, &endpoints_[peer], rail};
}

std::string TcpTransport::route(int peer, size_t lane) {
  const size_t rail = lane % num_rails(peer);
  const RailAddress own = own_end(peer, rail);
  const RailEndpoint& to = endpoints_[peer][rail];
  std::string through;
  for (const int rank : ways_->choose(lane_to(peer, lane)).relays) {
    through += str_cat(through.empty() ? " through rank " : ", ", rank);
  }
  return str_cat("connect from ", own.address, " (", own.interface, ") to ", to.address, " port ",
                 to.port, " (", to.interface, ")", through);
}

std::string TcpTransport::advice() const {
  return "; `dmlcomm doctor` lists interfaces, DMLCOMM_SOCKET_IFNAME chooses";
}

Result<Attempt> TcpTransport::connect(int peer, size_t lane) {
  const size_t rail = lane % num_rails(peer);
  const RailAddress own = own_end(peer, rail);
  if (num_rails(peer) > 1 && !has_carrier(own.interface)) {
    return Status(StatusCode::io_error, str_cat(route(peer, lane), ": no carrier"));
  }
  Ways::Way way = ways_->choose(lane_to(peer, lane));
  const RailEndpoint& end = endpoints_[peer][rail];
  const RelayHop to = way.hops.empty() ? RelayHop{end.address, end.port} : way.hops.front();
  Result<UniqueFd> fd =
      begin_connect(own.interface, own.address, to.address, to.port, socket_options());
  // A relay that refuses is not the peer.
  if (!fd.ok() && !way.hops.empty()) return Status(StatusCode::io_error, fd.status().message());
  if (!fd.ok()) return fd.status();
  Attempt attempt{std::move(*fd), std::move(way.preamble), {}, {}};
  if (way.may_be_forwarded || !way.hops.empty()) {
    const auto num_hops = static_cast<double>(way.hops.size());
    attempt.connect_by = Deadline::after_s(kHopTimeoutS);
    attempt.answer_by = Deadline::after_s(kHopTimeoutS * num_hops + kRelayTurnS);
  }
  return attempt;
}

bool TcpTransport::has_other_way(int peer, size_t lane, bool* refused) {
  return num_rails(peer) > 0 && ways_->has_other(lane_to(peer, lane), refused);
}

void TcpTransport::close() {
  ways_.reset();
  relay_duty_.reset();
}

// A rank that begins to send fills the queue before it does anything else, which delays those that
// wait for its core: 9 hosts of 200 Mb/s on 2 cores, which filled 4 MiB first, took 7187 ms for 100
// MB, not 7176. With cores for all a long queue keeps the card busy while they reduce.
//
// Where both directions are full and messages ask for others, a grant waits behind the queue: with
// 4 MiB in it a worker and a server took 1.5 times the time for a push_pull that their NICs need.
Result<std::unique_ptr<Channel>> TcpTransport::open(int peer, size_t rail, bool is_alone,
                                                    Handshake& handshake) {
  UniqueFd fd = handshake.take_fd();
  const bool is_local = job_.same_host(peer);
  tune(fd.get(), socket_options());
  const bool shares_cores = job_.num_ranks_on_machine() > job_.own_host().num_cores;
  size_t queue_bytes = is_alone ? 0 : kShortQueueBytes;
  if (is_alone && !is_local && (shares_cores || job_.queues_little)) queue_bytes = kQueueBytes;
  const std::string interface = own_end(peer, rail).interface;
  if (handshake.outgoing()) ways_->succeeded(lane_to(peer, handshake.lane()));
  if (!is_local && !handshake.outgoing()) {
    hold_to_card(fd.get(), interface, endpoints_[peer][rail].address);
  }
  const TicketMarking marking = is_local ? TicketMarking::none : job_.config.ticket_mark;
  auto channel = std::make_unique<TcpChannel>(
      std::move(fd), marking, queue_bytes,
      str_cat("tcp to ", job_.hosts[peer].host_name, " over ", interface));
  check_payloads_if_asked(handshake, *channel);
  return std::unique_ptr<Channel>(std::move(channel));
}

void TcpTransport::check_payloads_if_asked(const Handshake& handshake, Channel& channel) const {
  const bool is_asked_for =
      job_.config.checksum != Checksum::none || handshake.received().checks_payloads != 0;
  if (is_asked_for) channel.check_payloads();
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
