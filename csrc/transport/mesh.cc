#include "transport/mesh.h"

#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/check.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/str_cat.h"
#include "transport/tcp/tcp_channel.h"

namespace dmlcomm::transport {
namespace {

// What an epoll event is about: a kind in the upper half, its number in the lower.
constexpr uint64_t kDoorbell = 1ull << 32;
constexpr uint64_t kUnixListener = 2ull << 32;
constexpr uint64_t kTcpListener = 3ull << 32;
constexpr uint64_t kLink = 4ull << 32;
constexpr uint64_t kHandshake = 5ull << 32;
constexpr uint64_t kNumberMask = 0xffffffffu;

// Strangers that connect and say nothing are dropped after this time...
constexpr double kStrangerTimeoutS = 5.0;
// ...and when more than this wait beside the ranks of the job, the oldest is dropped at once.
constexpr size_t kMaxStrangers = 64;
constexpr int64_t kRetryNs = 20 * kNsPerMs;
// close() gives bytes on their way this long to leave.
constexpr double kCloseTimeoutS = 1.0;
// ...and after a failure waits so long for the peers to close, too.
constexpr double kFailedCloseTimeoutS = 0.3;

int choose_tick_ms(double peer_timeout_s) {
  return std::clamp(static_cast<int>(peer_timeout_s * 1000 / 8), 10, 250);
}

tcp::SocketOptions socket_options(const Config& config) {
  return {config.tcp_buffer_bytes, config.tcp_congestion};
}

}  // namespace

Mesh::Mesh(const MeshOptions& options)
    : options_(options),
      tick_ms_(choose_tick_ms(options.config.peer_timeout_s)),
      nonce_(static_cast<uint64_t>(now_ns()) * 0x9e3779b97f4a7c15u ^
             static_cast<uint64_t>(getpid())) {
  const size_t n = static_cast<size_t>(options.num_ranks);
  hosts_.resize(n);
  endpoints_.resize(n);
  local_index_.assign(n, -1);
  links_.resize(n);
  peer_segments_.resize(n);
  last_life_ns_.assign(n, 0);
  retry_at_ns_.assign(n, 0);
  last_tick_ns_ = now_ns();
}

Mesh::~Mesh() { close(); }

Result<std::unique_ptr<Mesh>> Mesh::create(const MeshOptions& options, const Directory& directory) {
  std::unique_ptr<Mesh> mesh(new Mesh(options));
  DMLCOMM_RETURN_IF_ERROR(mesh->meet(directory));
  return mesh;
}

// --- how ranks find each other ---

Status Mesh::meet(const Directory& directory) {
  epoll_ = UniqueFd(epoll_create1(EPOLL_CLOEXEC));
  doorbell_ = UniqueFd(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  if (!epoll_.valid() || !doorbell_.valid()) {
    return errno_status(StatusCode::io_error, "epoll and eventfd", errno);
  }
  DMLCOMM_RETURN_IF_ERROR(watch(doorbell_.get(), kDoorbell, false));
  if (options_.rank == 0) {
    Result<JobKey> key = JobKey::random();
    if (!key.ok()) return key.status();
    DMLCOMM_RETURN_IF_ERROR(directory.set("job", key->encode()));
  }
  Result<std::string> text = directory.get("job");
  if (!text.ok()) return text.status();
  Result<JobKey> key = JobKey::decode(*text);
  if (!key.ok()) return key.status();
  key_ = *key;
  DMLCOMM_RETURN_IF_ERROR(open_local());
  DMLCOMM_RETURN_IF_ERROR(read_hosts(directory));
  const size_t slot_bytes = num_local_ > 1 ? options_.config.shm_board_bytes : 0;
  Result<std::unique_ptr<shm::Segment>> segment = shm::Segment::create(
      static_cast<uint32_t>(options_.rank), static_cast<uint32_t>(num_local_), slot_bytes);
  if (!segment.ok()) return segment.status();
  segment_ = std::move(*segment);
  if (all_share_memory()) return Status();
  return open_network(directory);
}

Status Mesh::open_local() {
  hosts_[options_.rank] = local_host_address();
  HostAddress& own = hosts_[options_.rank];
  own.unix_name = str_cat("dmlcomm-", key_.job_id, "-", options_.rank);
  if (options_.config.transport == TransportChoice::tcp || options_.num_ranks == 1) return Status();
  Result<UniqueFd> listener = tcp::listen_unix(own.unix_name);
  if (!listener.ok()) return listener.status();
  unix_listener_ = std::move(*listener);
  if (options_.config.shm_single_copy) shm::permit_single_copy();
  return watch(unix_listener_.get(), kUnixListener, false);
}

Status Mesh::read_hosts(const Directory& directory) {
  const HostAddress own = hosts_[options_.rank];
  DMLCOMM_RETURN_IF_ERROR(directory.set(str_cat("host/", options_.rank), own.encode()));
  for (int rank = 0; rank < options_.num_ranks; ++rank) {
    if (rank != options_.rank) {
      Result<std::string> text = directory.get(str_cat("host/", rank));
      if (!text.ok()) return text.status();
      Result<HostAddress> host = HostAddress::decode(*text);
      if (!host.ok()) return host.status();
      hosts_[rank] = *host;
    }
    if (same_host(rank) &&
        (options_.config.transport != TransportChoice::tcp || rank == options_.rank)) {
      local_index_[rank] = num_local_++;
    } else if (!same_host(rank) && options_.config.transport == TransportChoice::shm) {
      return Status(
          StatusCode::invalid_argument,
          str_cat("DMLCOMM_TRANSPORT=shm, but rank ", rank, " is on host ", hosts_[rank].host_name,
                  " and rank ", options_.rank, " on ", own.host_name, "; use auto or tcp"));
    }
  }
  return Status();
}

// Listens on every rail, and on loopback for peers of this host where TCP was asked for.
Status Mesh::open_network(const Directory& directory) {
  const bool any_remote = num_ranks_on_host() < options_.num_ranks;
  std::vector<LocalRail> rails = any_remote ? options_.rails : std::vector<LocalRail>();
  if (any_remote && rails.empty()) {
    return Status(StatusCode::invalid_argument,
                  "the ranks are on several hosts, but no network interface of this one is usable; "
                  "`dmlcomm doctor` says why, DMLCOMM_SOCKET_IFNAME chooses");
  }
  if (options_.config.transport == TransportChoice::tcp) rails.push_back({"lo", "127.0.0.1"});
  for (const LocalRail& rail : rails) {
    Result<tcp::Listener> listener =
        tcp::listen_on(rail.address, {options_.config.port_first, options_.config.port_last},
                       socket_options(options_.config));
    if (!listener.ok()) return listener.status();
    DMLCOMM_RETURN_IF_ERROR(watch(listener->fd.get(), kTcpListener | listeners_.size(), false));
    own_endpoints_.push_back({rail.interface, rail.address, listener->port});
    listeners_.push_back(std::move(*listener));
  }
  DMLCOMM_RETURN_IF_ERROR(
      directory.set(str_cat("rails/", options_.rank), encode_rails(own_endpoints_)));
  for (int rank = 0; rank < options_.num_ranks; ++rank) {
    if (rank == options_.rank || shares_memory(rank)) continue;
    Result<std::string> text = directory.get(str_cat("rails/", rank));
    if (!text.ok()) return text.status();
    Result<std::vector<RailEndpoint>> endpoints = decode_rails(*text);
    if (!endpoints.ok()) return endpoints.status();
    // Loopback leads to the own host only, and there nothing else is needed.
    const bool is_local = same_host(rank);
    std::erase_if(*endpoints,
                  [&](const RailEndpoint& e) { return tcp::is_loopback(e.address) != is_local; });
    endpoints_[rank] = std::move(*endpoints);
  }
  return Status();
}

Status Mesh::watch(int fd, uint64_t what, bool edge) {
  epoll_event event{};
  event.events = edge ? EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET : EPOLLIN;
  event.data.u64 = what;
  if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) == 0) return Status();
  return errno_status(StatusCode::io_error, "epoll_ctl", errno);
}

int Mesh::num_ranks_on_host() const {
  int count = 0;
  for (int rank = 0; rank < options_.num_ranks; ++rank) count += same_host(rank) ? 1 : 0;
  return count;
}

bool Mesh::same_host(int peer) const {
  return hosts_[peer].host_id == hosts_[options_.rank].host_id;
}

// --- connecting ---

Link& Mesh::link(int peer) {
  DMLCOMM_CHECK(peer != options_.rank);
  if (!links_[peer]) {
    make_link(peer);
    last_life_ns_[peer] = now_ns();
    connect(peer);
  }
  return *links_[peer];
}

void Mesh::make_link(int peer) {
  links_[peer] =
      std::make_unique<Link>(LinkOptions{options_.rank, peer, key_.job_id, options_.events});
  active_.push_back(links_[peer].get());
}

void Mesh::connect(int peer) {
  if (shares_memory(peer)) {
    connect_local(peer);
  } else {
    connect_network(peer, 0);
  }
}

void Mesh::connect_local(int peer) {
  const std::string what = str_cat("connect to Unix socket @", hosts_[peer].unix_name);
  Result<UniqueFd> fd = tcp::connect_unix(hosts_[peer].unix_name);
  if (!fd.ok()) return links_[peer]->fail(fd.status());
  auto handshake = std::make_unique<Handshake>(std::move(*fd), true, peer, 0, what,
                                               Deadline::after_s(options_.config.peer_timeout_s));
  handshake->send(own_hello(kHelloRequest, 0), key_, options_.rank, own_fds(*handshake));
  add_handshake(std::move(handshake));
}

// Tries the rails in turn: rail i of this host reaches rail i of the peer.
void Mesh::connect_network(int peer, size_t rail) {
  const bool is_local = same_host(peer);
  Status last(StatusCode::io_error, "no common rail");
  for (; rail < endpoints_[peer].size(); ++rail) {
    const RailEndpoint& to = endpoints_[peer][rail];
    if (!is_local && rail >= options_.rails.size()) break;
    const std::string local = is_local ? "127.0.0.1" : own_endpoints_[rail].address;
    Result<UniqueFd> fd =
        tcp::begin_connect(local, to.address, to.port, socket_options(options_.config));
    if (!fd.ok()) {
      last = fd.status();
      continue;
    }
    const std::string what =
        str_cat("connect from ", local, " (", is_local ? "lo" : own_endpoints_[rail].interface,
                ") to ", to.address, " port ", to.port, " (", to.interface, ")");
    auto handshake = std::make_unique<Handshake>(std::move(*fd), false, peer, rail, what,
                                                 Deadline::after_s(options_.config.peer_timeout_s));
    handshake->send(own_hello(kHelloRequest, rail), key_, options_.rank, {});
    return add_handshake(std::move(handshake));
  }
  links_[peer]->fail(Status(last.code(), str_cat(last.message(),
                                                 "; `dmlcomm doctor` lists interfaces, "
                                                 "DMLCOMM_SOCKET_IFNAME chooses")));
}

Hello Mesh::own_hello(uint8_t kind, size_t rail) const {
  Hello hello;
  hello.secret = key_.secret;
  hello.rank = static_cast<uint32_t>(options_.rank);
  hello.num_ranks = static_cast<uint32_t>(options_.num_ranks);
  hello.rail = static_cast<uint16_t>(rail);
  hello.accepted = kind;
  hello.pid = static_cast<uint32_t>(getpid());
  hello.nonce_address = reinterpret_cast<uintptr_t>(&nonce_);
  hello.nonce = nonce_;
  return hello;
}

std::vector<int> Mesh::own_fds(const Handshake& handshake) const {
  if (!handshake.local()) return {};
  return {segment_->fd(), doorbell_.get()};
}

void Mesh::accept_all(int listener, bool local) {
  for (;;) {
    UniqueFd fd = tcp::accept_from(listener);
    if (!fd.valid()) return;
    if (local && !tcp::peer_is_same_user(fd.get())) continue;
    if (!local) tcp::tune(fd.get(), false, socket_options(options_.config));
    add_handshake(std::make_unique<Handshake>(std::move(fd), local, -1, 0, "incoming connection",
                                              Deadline::after_s(kStrangerTimeoutS)));
  }
}

void Mesh::add_handshake(std::unique_ptr<Handshake> handshake) {
  const size_t limit = kMaxStrangers + 2 * static_cast<size_t>(options_.num_ranks);
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
  if (links_[peer]->state() != Link::State::connecting) return;
  if (!handshake->local() && handshake->rail() + 1 < endpoints_[peer].size()) {
    log_warning(handshake->what(), " failed (", status.message(), "); trying the next rail");
    return connect_network(peer, handshake->rail() + 1);
  }
  links_[peer]->fail(Status(status.code(), str_cat(handshake->what(), ": ", status.message())));
}

void Mesh::handshake_complete(std::unique_ptr<Handshake> handshake) {
  const Hello& hello = handshake->received();
  if (handshake->outgoing()) {
    if (hello.accepted == kHelloWelcome) return attach(*handshake);
    // The peer's own connection to us is on its way. Should that come to nothing, try again.
    retry_at_ns_[handshake->peer()] = now_ns() + kRetryNs;
    return;
  }
  const bool plausible = hello.accepted == kHelloRequest &&
                         hello.num_ranks == static_cast<uint32_t>(options_.num_ranks) &&
                         hello.rank < hello.num_ranks &&
                         hello.rank != static_cast<uint32_t>(options_.rank);
  if (!plausible) return;
  if (welcome(*handshake)) attach(*handshake);
}

// Decides about a peer's connection, and answers. Where both sides have begun to connect, the
// higher rank's connection wins, and the lower rank's is told to yield.
bool Mesh::welcome(Handshake& handshake) {
  const int peer = static_cast<int>(handshake.received().rank);
  const bool connecting = links_[peer] && links_[peer]->state() == Link::State::connecting;
  const bool own_wins = connecting && options_.rank > peer && retry_at_ns_[peer] == 0;
  const bool taken = links_[peer] && links_[peer]->state() != Link::State::connecting;
  const bool accept = !own_wins && !taken;
  handshake.send(own_hello(accept ? kHelloWelcome : kHelloYield, handshake.received().rail), key_,
                 options_.rank, own_fds(handshake));
  // A hello fits into the empty buffer of a fresh connection.
  Result<Handshake::Progress> sent = handshake.advance(key_);
  if (!accept || !sent.ok()) return false;
  if (!links_[peer]) {
    make_link(peer);
  }
  drop_handshakes_to(peer);
  return true;
}

void Mesh::drop_handshakes_to(int peer) {
  std::erase_if(handshakes_, [peer](const auto& item) { return item.second->peer() == peer; });
  retry_at_ns_[peer] = 0;
}

void Mesh::attach(Handshake& handshake) {
  const int peer = static_cast<int>(handshake.received().rank);
  if (links_[peer]->state() != Link::State::connecting) return;
  last_life_ns_[peer] = now_ns();
  if (handshake.local()) return attach_local(handshake, peer);
  UniqueFd fd = handshake.take_fd();
  const bool is_local = same_host(peer);
  tcp::tune(fd.get(), is_local, socket_options(options_.config));
  const int number = fd.get();
  const size_t rail = handshake.received().rail;
  const std::string interface =
      rail < own_endpoints_.size() && !is_local ? own_endpoints_[rail].interface : "lo";
  links_[peer]->attach(std::make_unique<tcp::TcpChannel>(
      std::move(fd), str_cat("tcp to ", hosts_[peer].host_name, " over ", interface)));
  ++num_socket_links_;
  if (Status status = watch(number, kLink | static_cast<uint64_t>(peer), true); !status.ok()) {
    links_[peer]->fail(status);
  }
}

void Mesh::attach_local(Handshake& handshake, int peer) {
  std::vector<UniqueFd> fds = handshake.take_received_fds();
  if (fds.size() != 2) {
    return links_[peer]->fail(
        Status(StatusCode::protocol_error, "the hello came without shared memory"));
  }
  Result<std::unique_ptr<shm::Segment>> segment =
      shm::Segment::map(std::move(fds[0]), static_cast<uint32_t>(peer),
                        static_cast<uint32_t>(num_local_), segment_->slot_bytes());
  if (!segment.ok()) return links_[peer]->fail(segment.status());
  peer_segments_[peer] = std::move(*segment);
  shm::ShmPeer state;
  state.socket = handshake.take_fd();
  state.doorbell = std::move(fds[1]);
  state.segment = peer_segments_[peer];
  state.local_index = static_cast<uint32_t>(local_index_[peer]);
  state.pid = tcp::peer_pid(state.socket.get());
  const Hello& hello = handshake.received();
  uint64_t seen = 0;
  state.can_pull = options_.config.shm_single_copy && state.pid > 0 &&
                   shm::can_read_process(state.pid, hello.nonce_address, &seen, sizeof(seen)) &&
                   seen == hello.nonce;
  const int number = state.socket.get();
  links_[peer]->attach(std::make_unique<shm::ShmChannel>(
      segment_, static_cast<uint32_t>(local_index_[options_.rank]), std::move(state)));
  if (Status status = watch(number, kLink | static_cast<uint64_t>(peer), true); !status.ok()) {
    links_[peer]->fail(status);
  }
}

shm::Segment* Mesh::peer_segment(int peer) { return peer_segments_[peer].get(); }

void Mesh::notify(int peer) {
  if (links_[peer] && links_[peer]->channel()) links_[peer]->channel()->notify();
}

// --- events ---

bool Mesh::poll(bool look_at_sockets) {
  if (look_at_sockets) {
    epoll_event events[32];
    const int count = epoll_wait(epoll_.get(), events, 32, 0);
    for (int i = 0; i < count; ++i) {
      on_event(events[i].data.u64, events[i].events & ~EPOLLOUT, events[i].events & EPOLLOUT);
    }
  }
  bool moved = false;
  for (size_t i = 0; i < active_.size(); ++i) {
    moved |= active_[i]->progress();
    active_[i]->flush_last_words();
  }
  return moved;
}

void Mesh::on_event(uint64_t what, bool readable, bool writable) {
  const auto number = static_cast<uint32_t>(what & kNumberMask);
  switch (what & ~kNumberMask) {
    case kDoorbell: {
      uint64_t count;
      (void)!read(doorbell_.get(), &count, sizeof(count));
      break;
    }
    case kUnixListener: accept_all(unix_listener_.get(), true); break;
    case kTcpListener: accept_all(listeners_[number].fd.get(), false); break;
    case kHandshake: advance_handshake(number); break;
    case kLink:
      if (Channel* channel = links_[number]->channel()) {
        channel->descriptor_ready(readable, writable);
      }
      break;
    default: DMLCOMM_CHECK(false);
  }
}

void Mesh::sleep(int timeout_ms, const std::function<bool()>& has_news) {
  auto& sleeping = segment_->header().sleeping;
  sleeping.store(1, std::memory_order_relaxed);
  // Pairs with the fence in wake() and ShmChannel::notify().
  std::atomic_thread_fence(std::memory_order_seq_cst);
  bool news = has_news();
  for (Link* link : active_) {
    news = news || (link->state() == Link::State::up && !link->channel()->needs_heartbeats() &&
                    link->channel()->maybe_readable());
  }
  if (!news) {
    pollfd ready{epoll_.get(), POLLIN, 0};
    (void)::poll(&ready, 1, timeout_ms);
  }
  sleeping.store(0, std::memory_order_relaxed);
}

void Mesh::wake() {
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (segment_->header().sleeping.load(std::memory_order_relaxed) == 0) return;
  const uint64_t one = 1;
  (void)!write(doorbell_.get(), &one, sizeof(one));
}

void Mesh::tick(const std::function<bool(int)>& waits_for) {
  const int64_t now = now_ns();
  segment_->header().heartbeat.fetch_add(1, std::memory_order_relaxed);
  // A process that was stopped itself must not blame its peers for the pause.
  const bool paused = now - last_tick_ns_ > 4 * tick_ms_ * kNsPerMs;
  last_tick_ns_ = now;
  expire_handshakes();
  retry_connects();
  const auto timeout_ns = static_cast<int64_t>(options_.config.peer_timeout_s * kNsPerS);
  for (size_t i = 0; i < active_.size(); ++i) {
    Link& link = *active_[i];
    if (link.state() != Link::State::up) continue;
    if (link.channel()->needs_heartbeats()) link.heartbeat();
    int64_t& last_life = last_life_ns_[link.peer()];
    if (link.take_sign_of_life() || paused) last_life = now;
    if (now - last_life < timeout_ns) continue;
    if (!link.has_outstanding() && !waits_for(link.peer())) continue;
    link.fail(Status(StatusCode::peer_lost,
                     str_cat("no sign of life for ", options_.config.peer_timeout_s,
                             " s (DMLCOMM_PEER_TIMEOUT_S); it is frozen, or cut off")));
  }
}

void Mesh::expire_handshakes() {
  std::vector<uint64_t> expired;
  for (const auto& [id, handshake] : handshakes_) {
    if (handshake->deadline().expired()) expired.push_back(id);
  }
  for (uint64_t id : expired) {
    std::unique_ptr<Handshake> handshake = std::move(handshakes_[id]);
    handshakes_.erase(id);
    handshake_failed(
        std::move(handshake),
        Status(StatusCode::peer_lost, str_cat("no answer within ", options_.config.peer_timeout_s,
                                              " s (DMLCOMM_PEER_TIMEOUT_S)")));
  }
}

void Mesh::retry_connects() {
  for (int peer = 0; peer < options_.num_ranks; ++peer) {
    if (retry_at_ns_[peer] == 0 || now_ns() < retry_at_ns_[peer]) continue;
    retry_at_ns_[peer] = 0;
    if (links_[peer]->state() == Link::State::connecting) connect(peer);
  }
}

// --- the end ---

void Mesh::fail_all(const Status& reason) {
  for (Link* link : active_) link->end(reason);
  handshakes_.clear();
  // Ranks that have not met us yet find nobody.
  listeners_.clear();
  unix_listener_.reset();
}

void Mesh::close() {
  if (std::exchange(closed_, true)) return;
  const auto busy = [](Link* link) { return link->wants_to_write() || link->flush_last_words(); };
  poll_while(busy, kCloseTimeoutS);
  bool failed = false;
  for (Link* link : active_) {
    failed |= link->state() == Link::State::failed;
    link->send_goodbye();
  }
  // After a failure everybody closes soon, and should hear the reason before the connection goes.
  poll_while([](Link* link) { return link->discard_input(); }, failed ? kFailedCloseTimeoutS : 0);
  handshakes_.clear();
  links_.clear();
  active_.clear();
  listeners_.clear();
  unix_listener_.reset();
}

// Until `busy` is true of no link.
void Mesh::poll_while(const std::function<bool(Link*)>& busy, double timeout_s) {
  const Deadline deadline = Deadline::after_s(timeout_s);
  while (std::count_if(active_.begin(), active_.end(), busy) > 0 && !deadline.expired()) {
    if (!poll(true)) sleep(1, [] { return false; });
  }
}

std::string Mesh::description() const {
  std::string text = str_cat("host ", hosts_[options_.rank].host_name, ", ", num_local_ - 1,
                             " peers through shared memory, ", options_.num_ranks - num_local_,
                             " over the network");
  for (const RailEndpoint& rail : own_endpoints_) {
    text += str_cat(", ", rail.interface, " ", rail.address, ":", rail.port);
  }
  return text;
}

}  // namespace dmlcomm::transport
