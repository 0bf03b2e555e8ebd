// How a mesh makes and repairs connections: one per peer and lane.
//
// The first ones are made by whoever needs them. A rail that dies while others live is connected
// anew by the higher rank, in the background; a link without any lane by both sides, over all
// rails.
#include <sys/epoll.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "base/str_cat.h"
#include "transport/mesh.h"
#include "transport/tcp/device.h"
#include "transport/tcp/tcp_channel.h"

namespace dmlcomm::transport {
namespace {

// Strangers that connect and say nothing are dropped after this time...
constexpr double kStrangerTimeoutS = 5.0;
// ...and when more than this wait beside the ranks of the job, which have a connection per lane in
// each direction, the oldest is dropped at once.
constexpr size_t kMaxStrangers = 64;
// Repeated attempts wait this long, and twice as long each time up to the second.
constexpr int64_t kRetryNs = 20 * kNsPerMs;
constexpr int64_t kMaxRetryNs = 1000 * kNsPerMs;
constexpr double kRepairTimeoutS = 1.0;
// The other rails are tried as well when the first one takes longer.
constexpr int64_t kFallbackNs = 500 * kNsPerMs;
// Where a rail stands in for the one that leads to a peer, so many connections are made over it:
// they choose among equal paths by their ports. With one, all that a host of bcube:3,2 got by
// detours often came by one neighbour, and 12.5 MB took 1.12 to 1.18 times its bound, not 1.04
// to 1.12.
constexpr size_t kDetourLanes = 4;
// What the kernel takes of a connection's data beyond what is on its way, where that is limited.
constexpr size_t kQueueBytes = 512 * 1024;
// Of connections that share the work: none takes more than it will soon carry.
constexpr size_t kShortQueueBytes = 64 * 1024;

}  // namespace

Link& Mesh::link(int peer) {
  DMLCOMM_CHECK(peer != options_.rank);
  if (!links_[peer]) {
    make_link(peer);
    if (end_reason_.ok()) connect(peer);
  }
  return *links_[peer];
}

void Mesh::make_link(int peer) {
  const size_t num_rails = std::max<size_t>(1, num_rails_to(peer));
  const size_t num_lanes = std::max<size_t>(1, num_lanes_to(peer));
  RailCounters* counters = same_host(peer) ? &local_counters_ : counters_.data();
  const uint8_t first_rail = options_.first_rail.empty() ? kAnyRail : options_.first_rail[peer];
  links_[peer] = std::make_unique<Link>(LinkOptions{options_.rank, peer, key_.job_id, num_rails,
                                                    options_.events, counters,
                                                    num_lanes / num_rails, first_rail});
  connections_[peer].resize(num_lanes);
  active_.push_back(links_[peer].get());
  last_life_ns_[peer] = connecting_since_ns_[peer] = now_ns();
  // The communicator has failed: nobody looks after new requests any more.
  if (!end_reason_.ok()) links_[peer]->end(end_reason_);
}

// Rail i of this host reaches rail i of the peer. On the own host there is one way.
size_t Mesh::num_rails_to(int peer) const {
  if (same_host(peer)) return 1;
  return std::min(options_.rails.size(), endpoints_[peer].size());
}

// Lane i is on rail i modulo the rails.
size_t Mesh::num_lanes_to(int peer) const {
  const size_t num_rails = num_rails_to(peer);
  return options_.first_rail.empty() || num_rails < 2 ? num_rails : kDetourLanes * num_rails;
}

size_t Mesh::rail_of(int peer, size_t lane) const {
  return lane % std::max<size_t>(1, num_rails_to(peer));
}

// The rail that leads to the peer has one lane.
bool Mesh::is_connected_by(int peer, size_t lane) const {
  return lane < num_rails_to(peer) || rail_of(peer, lane) != options_.first_rail[peer];
}

void Mesh::connect(int peer) {
  if (shares_memory(peer)) return connect_local(peer);
  if (num_rails_to(peer) == 0) {
    return links_[peer]->fail(Status(StatusCode::io_error, advise("no common rail")));
  }
  const uint8_t first = options_.first_rail.empty() ? kAnyRail : options_.first_rail[peer];
  if (first < connections_[peer].size()) return connect_lane(peer, first);
  connect_all(peer);
}

void Mesh::connect_all(int peer) {
  for (size_t lane = 0; lane < connections_[peer].size(); ++lane) {
    if (links_[peer]->state() == Link::State::failed) return;
    const Connection& connection = connections_[peer][lane];
    const bool is_missing = !connection.attempted && links_[peer]->channel(lane) == nullptr;
    if (is_missing && is_connected_by(peer, lane)) connect_lane(peer, lane);
  }
}

void Mesh::connect_local(int peer) {
  const std::string what = str_cat("connect to Unix socket @", hosts_[peer].unix_name);
  Result<UniqueFd> fd = tcp::connect_unix(hosts_[peer].unix_name);
  if (!fd.ok()) return links_[peer]->fail(fd.status());
  connections_[peer][0].attempted = true;
  auto handshake = std::make_unique<Handshake>(std::move(*fd), true, peer, 0, what,
                                               Deadline::after_s(options_.config.peer_timeout_s));
  handshake->send(own_hello(kHelloRequest, 0, 0), key_, options_.rank, own_fds(*handshake));
  add_handshake(std::move(handshake));
}

void Mesh::connect_lane(int peer, size_t lane) {
  const bool is_local = same_host(peer);
  const RailEndpoint& to = endpoints_[peer][rail_of(peer, lane)];
  const RailEndpoint& own = own_endpoints_[rail_of(peer, lane)];
  const std::string local = is_local ? "127.0.0.1" : own.address;
  const std::string interface = is_local ? "lo" : own.interface;
  Connection& connection = connections_[peer][lane];
  connection.attempted = true;
  connection.retry_at_ns = 0;
  // Odd numbers are those of the higher rank: the two sides never give the same one.
  connection.number = 2 * ++num_connects_ + (options_.rank > peer ? 1 : 0);
  const std::string what = str_cat("connect from ", local, " (", interface, ") to ", to.address,
                                   " port ", to.port, " (", to.interface, ")");
  if (!is_local && connections_[peer].size() > 1 && !tcp::has_carrier(interface)) {
    const Status status(StatusCode::io_error, str_cat(what, ": no carrier"));
    return connect_failed(peer, lane, status, false);
  }
  Result<UniqueFd> fd = tcp::begin_connect(interface, local, to.address, to.port, socket_options());
  if (!fd.ok()) {
    return connect_failed(peer, lane, fd.status(), fd.status().code() == StatusCode::peer_lost);
  }
  const double timeout_s = links_[peer]->state() == Link::State::connecting
                               ? options_.config.peer_timeout_s
                               : kRepairTimeoutS;
  auto handshake = std::make_unique<Handshake>(std::move(*fd), false, peer, lane, what,
                                               Deadline::after_s(timeout_s));
  handshake->send(own_hello(kHelloRequest, lane, connection.number), key_, options_.rank, {});
  add_handshake(std::move(handshake));
}

// `refused`: nobody listens there any more. A connection that broke later may do better next time.
void Mesh::connect_failed(int peer, size_t lane, const Status& status, bool refused) {
  Link& link = *links_[peer];
  if (link.state() != Link::State::connecting && link.state() != Link::State::up) return;
  Connection& connection = connections_[peer][lane];
  connection.attempted = false;
  const bool has_failed_before = std::exchange(connection.failed, true);
  connection.wait_ns = std::clamp(2 * connection.wait_ns, kRetryNs, kMaxRetryNs);
  connection.retry_at_ns = now_ns() + connection.wait_ns;
  if (link.has_lane()) return;
  const bool has_ended = connection.was_up && refused;
  const bool none_works = link.state() == Link::State::connecting && all_have_failed(peer);
  if (has_ended || none_works) {
    return link.fail(Status(status.code(), advise(status.message())));
  }
  if (link.state() != Link::State::connecting) return;
  if (!has_failed_before) log_warning(status.message(), "; trying the other rails");
  connect_untried(peer);
}

bool Mesh::all_have_failed(int peer) const {
  for (size_t lane = 0; lane < connections_[peer].size(); ++lane) {
    if (is_connected_by(peer, lane) && !connections_[peer][lane].failed) return false;
  }
  return true;
}

// What was tried and failed has a time at which it is tried again.
void Mesh::connect_untried(int peer) {
  for (size_t lane = 0; lane < connections_[peer].size(); ++lane) {
    if (links_[peer]->state() == Link::State::failed) return;
    const Connection& connection = connections_[peer][lane];
    const bool is_untried =
        !connection.attempted && connection.retry_at_ns == 0 && is_connected_by(peer, lane);
    if (is_untried && links_[peer]->channel(lane) == nullptr) connect_lane(peer, lane);
  }
}

std::string Mesh::advise(const std::string& problem) {
  return str_cat(problem, "; `dmlcomm doctor` lists interfaces, DMLCOMM_SOCKET_IFNAME chooses");
}

// The engine has been told; here the lane is repaired.
void Mesh::lane_lost(int peer, size_t lane) {
  --num_socket_lanes_;
  Connection& connection = connections_[peer][lane];
  connection.wait_ns = 0;
  connection.retry_at_ns = now_ns() + kRetryNs;
  if (links_[peer]->has_lane()) return;
  for (Connection& each : connections_[peer]) each.wait_ns = 0;
  connect_all(peer);
}

// Attempts whose time has come. While other lanes live, the higher rank repairs.
void Mesh::retry_connects() {
  const int64_t now = now_ns();
  // A link that fails may make others.
  for (size_t i = 0; i < active_.size(); ++i) {
    Link* link = active_[i];
    const int peer = link->peer();
    const bool is_first = link->state() == Link::State::connecting;
    if (!is_first && link->state() != Link::State::up) continue;
    if (shares_memory(peer)) {
      retry_local(peer, now);
      continue;
    }
    if (is_first && now - connecting_since_ns_[peer] > kFallbackNs) connect_untried(peer);
    for (size_t lane = 0; lane < connections_[peer].size(); ++lane) {
      const Connection& connection = connections_[peer][lane];
      const bool is_due = connection.retry_at_ns != 0 && now >= connection.retry_at_ns;
      if (!is_due || connection.attempted || link->channel(lane) != nullptr) continue;
      const bool ours = is_first || !link->has_lane() || options_.rank > peer || !connection.was_up;
      if (ours) connect_lane(peer, lane);
    }
  }
}

void Mesh::retry_local(int peer, int64_t now) {
  Connection& connection = connections_[peer][0];
  if (connection.retry_at_ns == 0 || now < connection.retry_at_ns) return;
  connection.retry_at_ns = 0;
  if (links_[peer]->state() == Link::State::connecting) connect_local(peer);
}

// Looks whether the cables of the own rails are in.
void Mesh::check_carriers() {
  for (size_t rail = 0; rail < options_.rails.size(); ++rail) {
    const bool before = has_carrier_[rail];
    has_carrier_[rail] = tcp::has_carrier(options_.rails[rail].interface);
    if (has_carrier_[rail] == before) continue;
    log_warning("rail ", options_.rails[rail].interface,
                before ? " has lost its carrier" : " has its carrier back");
    for (Link* link : active_) {
      if (rail >= num_rails_to(link->peer()) || link->num_lanes() == 1) continue;
      for (size_t lane = rail; lane < link->num_lanes(); lane += num_rails_to(link->peer())) {
        if (before) {
          link->lose_lane(lane, str_cat(options_.rails[rail].interface, " has no carrier"));
        } else {
          retry_now(link->peer(), lane);
        }
      }
    }
  }
}

void Mesh::retry_now(int peer, size_t lane) {
  Connection& connection = connections_[peer][lane];
  connection.wait_ns = 0;
  if (connection.retry_at_ns != 0) connection.retry_at_ns = 1;
}

Hello Mesh::own_hello(uint8_t kind, size_t lane, uint64_t connection) const {
  Hello hello;
  hello.secret = key_.secret;
  hello.rank = static_cast<uint32_t>(options_.rank);
  hello.num_ranks = static_cast<uint32_t>(options_.num_ranks);
  hello.lane = static_cast<uint16_t>(lane);
  hello.accepted = kind;
  hello.pid = static_cast<uint32_t>(getpid());
  hello.nonce_address = reinterpret_cast<uintptr_t>(&nonce_);
  hello.nonce = nonce_;
  hello.connection = connection;
  return hello;
}

std::vector<int> Mesh::own_fds(const Handshake& handshake) const {
  if (!handshake.local()) return {};
  std::vector<int> fds = {segment_->fd(), doorbell_.get()};
  if (arena_ != nullptr) fds.push_back(arena_->fd());
  return fds;
}

void Mesh::accept_all(int listener, bool local) {
  for (;;) {
    UniqueFd fd = tcp::accept_from(listener);
    if (!fd.valid()) return;
    if (local && !tcp::peer_is_same_user(fd.get())) continue;
    if (!local) tcp::tune(fd.get(), socket_options());
    add_handshake(std::make_unique<Handshake>(std::move(fd), local, -1, 0, "incoming connection",
                                              Deadline::after_s(kStrangerTimeoutS)));
  }
}

void Mesh::add_handshake(std::unique_ptr<Handshake> handshake) {
  const size_t num_rails = std::max<size_t>(1, own_endpoints_.size());
  const size_t limit =
      kMaxStrangers + 2 * kDetourLanes * num_rails * static_cast<size_t>(options_.num_ranks);
  if (handshakes_.size() >= limit) {
    const auto oldest = std::find_if(handshakes_.begin(), handshakes_.end(),
                                     [](const auto& item) { return !item.second->outgoing(); });
    if (oldest != handshakes_.end()) handshakes_.erase(oldest);
  }
  const uint64_t id = next_handshake_++ & kNumberMask;
  const int fd = handshake->fd();
  handshakes_[id] = std::move(handshake);
  if (Status status = watch(fd, kHandshake | id, true); !status.ok()) {
    log_warning("cannot watch a connection: ", status.message());
  }
  advance_handshake(id);
}

void Mesh::advance_handshake(uint64_t id) {
  const auto it = handshakes_.find(id);
  if (it == handshakes_.end()) return;
  Result<Handshake::Progress> progress = it->second->advance(key_);
  if (progress.ok() && *progress != Handshake::Progress::received) return;
  std::unique_ptr<Handshake> handshake = std::move(it->second);
  handshakes_.erase(it);
  epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, handshake->fd(), nullptr);
  if (progress.ok()) {
    handshake_complete(std::move(handshake));
  } else {
    handshake_failed(std::move(handshake), progress.status());
  }
}

void Mesh::handshake_failed(std::unique_ptr<Handshake> handshake, const Status& status) {
  if (!handshake->outgoing()) {
    log_info("dropped a connection from a stranger: ", status.message());
    return;
  }
  const int peer = handshake->peer();
  const Status detailed(status.code(), str_cat(handshake->what(), ": ", status.message()));
  if (!handshake->local()) {
    const bool refused = !handshake->connected() && status.code() == StatusCode::peer_lost;
    return connect_failed(peer, handshake->lane(), detailed, refused);
  }
  if (links_[peer]->state() == Link::State::connecting) links_[peer]->fail(detailed);
}

void Mesh::handshake_complete(std::unique_ptr<Handshake> handshake) {
  const Hello& hello = handshake->received();
  if (handshake->outgoing()) {
    if (static_cast<int>(hello.rank) != handshake->peer() || hello.lane != handshake->lane()) {
      const Status status(StatusCode::io_error, "another rank or lane has answered");
      return handshake_failed(std::move(handshake), status);
    }
    if (hello.accepted == kHelloWelcome) return attach(*handshake);
    // The peer's own connection to us is on its way. Should that come to nothing, try again.
    Connection& connection = connections_[handshake->peer()][handshake->lane()];
    connection.attempted = handshake->local();
    connection.retry_at_ns = now_ns() + kRetryNs;
    return;
  }
  const bool plausible = hello.accepted == kHelloRequest &&
                         hello.num_ranks == static_cast<uint32_t>(options_.num_ranks) &&
                         hello.rank < hello.num_ranks &&
                         hello.rank != static_cast<uint32_t>(options_.rank);
  if (!plausible) return;
  const int peer = static_cast<int>(hello.rank);
  if (handshake->local() != shares_memory(peer)) return;
  if (hello.lane >= num_lanes_to(peer)) return;
  if (welcome(*handshake)) attach(*handshake);
}

// Decides about a peer's connection, and answers. Where both sides have begun to connect, the
// higher rank's connection wins, and the lower rank's is told to yield.
bool Mesh::welcome(Handshake& handshake) {
  const int peer = static_cast<int>(handshake.received().rank);
  const size_t lane = handshake.received().lane;
  if (!links_[peer]) make_link(peer);
  Link& link = *links_[peer];
  const Connection& connection = connections_[peer][lane];
  // The higher rank knows better whether the lane of before still lives.
  if (link.num_lanes() > 1 && link.channel(lane) != nullptr && peer > options_.rank) {
    link.lose_lane(lane, "the peer has connected anew");
  }
  const bool own_wins = connection.attempted && options_.rank > peer && connection.retry_at_ns == 0;
  const bool is_open = link.state() == Link::State::connecting || link.state() == Link::State::up;
  const bool accept = !own_wins && is_open && link.channel(lane) == nullptr;
  handshake.send(
      own_hello(accept ? kHelloWelcome : kHelloYield, lane, handshake.received().connection), key_,
      options_.rank, own_fds(handshake));
  // A hello fits into the empty buffer of a fresh connection.
  Result<Handshake::Progress> sent = handshake.advance(key_);
  if (!accept || !sent.ok()) return false;
  drop_handshakes_to(peer, lane);
  return true;
}

void Mesh::drop_handshakes_to(int peer, size_t lane) {
  std::erase_if(handshakes_, [&](const auto& item) {
    return item.second->peer() == peer && item.second->lane() == lane;
  });
}

void Mesh::attach(Handshake& handshake) {
  const int peer = static_cast<int>(handshake.received().rank);
  const size_t lane = handshake.received().lane;
  Link& link = *links_[peer];
  const bool is_open = link.state() == Link::State::connecting || link.state() == Link::State::up;
  if (!is_open || link.channel(lane) != nullptr) return;
  last_life_ns_[peer] = now_ns();
  Connection& connection = connections_[peer][lane];
  const bool is_back = connection.was_up;
  connection = {.attempted = false, .was_up = true};
  if (handshake.local()) return attach_local(handshake, peer);
  UniqueFd fd = handshake.take_fd();
  const bool is_local = same_host(peer);
  tcp::tune(fd.get(), socket_options());
  limit_queue(fd.get(), link, is_local);
  const size_t rail = rail_of(peer, lane);
  if (!is_local && !handshake.outgoing()) {
    tcp::hold_to_card(fd.get(), own_endpoints_[rail].interface, endpoints_[peer][rail].address);
  }
  const int number = fd.get();
  const std::string interface = is_local ? "lo" : own_endpoints_[rail].interface;
  const std::string description = str_cat("tcp to ", hosts_[peer].host_name, " over ", interface);
  link.attach(lane, std::make_unique<tcp::TcpChannel>(std::move(fd), description),
              handshake.received().connection);
  ++num_socket_lanes_;
  const uint64_t event = kLink | lane << kLaneShift | static_cast<uint64_t>(peer);
  if (Status status = watch(number, event, true); !status.ok()) link.fail(status);
  if (is_back) {
    ++counters_[rail].lanes_back;
    options_.events->on_rail_event(peer, false, str_cat(description, " is back"));
  }
}

// A rank that begins to send fills the queue before it does anything else, which delays those that
// wait for its core: 9 hosts of 200 Mb/s on 2 cores, which filled 4 MiB first, took 7187 ms for 100
// MB, not 7176. With cores for all a long queue keeps the card busy while they reduce.
void Mesh::limit_queue(int fd, const Link& link, bool is_local) {
  if (link.num_lanes() > 1) {
    tcp::limit_queue(fd, kShortQueueBytes);
  } else if (!is_local && num_ranks_on_machine() > hosts_[options_.rank].num_cores) {
    tcp::limit_queue(fd, kQueueBytes);
  }
}

void Mesh::attach_local(Handshake& handshake, int peer) {
  std::vector<UniqueFd> fds = handshake.take_received_fds();
  if (fds.size() != 2 && fds.size() != 3) {
    return links_[peer]->fail(
        Status(StatusCode::protocol_error, "the hello came without shared memory"));
  }
  Result<std::unique_ptr<shm::Segment>> segment =
      shm::Segment::map(std::move(fds[0]), static_cast<uint32_t>(peer),
                        static_cast<uint32_t>(num_local_), segment_->area_bytes());
  if (!segment.ok()) return links_[peer]->fail(segment.status());
  peer_segments_[peer] = std::move(*segment);
  areas_[peer] = peer_segments_[peer]->area();
  shm::ShmPeer state;
  state.socket = handshake.take_fd();
  state.doorbell = std::move(fds[1]);
  state.segment = peer_segments_[peer];
  state.local_index = static_cast<uint32_t>(local_index_[peer]);
  state.pid = tcp::peer_pid(state.socket.get());
  const Hello& hello = handshake.received();
  uint64_t seen = 0;
  state.is_readable = options_.config.shm_single_copy && state.pid > 0 &&
                      shm::can_read_process(state.pid, hello.nonce_address, &seen, sizeof(seen)) &&
                      seen == hello.nonce;
  if (fds.size() == 3) {
    const shm::Header& header = state.segment->header();
    Result<MappedArena> arena =
        MappedArena::map(fds[2].get(), header.arena_address, header.arena_bytes);
    // Without it the kernel copies.
    if (arena.ok()) state.arena = std::move(*arena);
  }
  const int number = state.socket.get();
  links_[peer]->attach(
      0, std::make_unique<shm::ShmChannel>(
             segment_, static_cast<uint32_t>(local_index_[options_.rank]), std::move(state)));
  if (Status status = watch(number, kLink | static_cast<uint64_t>(peer), true); !status.ok()) {
    links_[peer]->fail(status);
  }
}

void Mesh::expire_handshakes() {
  std::vector<uint64_t> expired;
  for (const auto& [id, handshake] : handshakes_) {
    if (handshake->deadline().expired()) expired.push_back(id);
  }
  for (uint64_t id : expired) {
    const auto it = handshakes_.find(id);
    if (it == handshakes_.end()) continue;  // went with the failure of another one
    std::unique_ptr<Handshake> handshake = std::move(it->second);
    handshakes_.erase(it);
    handshake_failed(
        std::move(handshake),
        Status(StatusCode::io_error, str_cat("no answer within ", options_.config.peer_timeout_s,
                                             " s (DMLCOMM_PEER_TIMEOUT_S)")));
  }
}

}  // namespace dmlcomm::transport
