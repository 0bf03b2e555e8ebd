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

namespace dmlcomm::transport {
namespace {

// A lane that carries bytes of which none is confirmed for so long is dead. The kernel repeats a
// lost packet after 200 ms, and after another 400 ms.
constexpr int64_t kStallNs = 500 * kNsPerMs;
constexpr int kRailCheckMs = 50;
// close() gives bytes on their way this long to leave.
constexpr double kCloseTimeoutS = 1.0;
// ...and after a failure waits so long for the peers to close, too.
constexpr double kFailedCloseTimeoutS = 0.3;

int choose_heartbeat_ms(double peer_timeout_s) {
  return std::clamp(static_cast<int>(peer_timeout_s * 1000 / 8), 10, 250);
}

}  // namespace

Mesh::Mesh(const MeshOptions& options)
    : options_(options),
      heartbeat_ms_(choose_heartbeat_ms(options.config.peer_timeout_s)),
      tick_ms_(options.rails.size() > 1 ? std::min(kRailCheckMs, heartbeat_ms_) : heartbeat_ms_),
      nonce_(static_cast<uint64_t>(now_ns()) * 0x9e3779b97f4a7c15u ^
             static_cast<uint64_t>(getpid())) {
  const size_t n = static_cast<size_t>(options.num_ranks);
  hosts_.resize(n);
  endpoints_.resize(n);
  local_index_.assign(n, -1);
  links_.resize(n);
  peer_segments_.resize(n);
  areas_.resize(n);
  last_life_ns_.assign(n, 0);
  connections_.resize(n);
  connecting_since_ns_.assign(n, 0);
  has_carrier_.assign(options.rails.size(), true);
  for (const LocalRail& rail : options.rails) counters_.push_back({.interface = rail.interface});
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
  Result<std::unique_ptr<shm::Segment>> segment =
      shm::Segment::create(static_cast<uint32_t>(options_.rank), static_cast<uint32_t>(num_local_),
                           options_.shared_area_bytes);
  if (!segment.ok()) return segment.status();
  segment_ = std::move(*segment);
  areas_[options_.rank] = segment_->area();
  if (arena_ != nullptr) {
    segment_->header().arena_address = arena_->address();
    segment_->header().arena_bytes = arena_->bytes();
  }
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
Status Mesh::listen_on_rails() {
  const bool any_remote = num_ranks_on_host() < options_.num_ranks;
  std::vector<LocalRail> rails = any_remote ? options_.rails : std::vector<LocalRail>();
  if (any_remote && rails.empty()) {
    return Status(StatusCode::invalid_argument,
                  "the ranks are on several hosts, but no network interface of this one is usable; "
                  "`dmlcomm doctor` says why, DMLCOMM_SOCKET_IFNAME chooses");
  }
  if (options_.config.transport == TransportChoice::tcp) rails.push_back({"lo", "127.0.0.1"});
  for (const LocalRail& rail : rails) {
    Result<tcp::Listener> listener = tcp::listen_on(
        rail.address, {options_.config.port_first, options_.config.port_last}, socket_options());
    if (!listener.ok()) return listener.status();
    DMLCOMM_RETURN_IF_ERROR(watch(listener->fd.get(), kTcpListener | listeners_.size(), false));
    own_endpoints_.push_back({rail.interface, rail.address, listener->port});
    listeners_.push_back(std::move(*listener));
  }
  return Status();
}

// Ranks that wait for the rails of one that has none are told why.
Status Mesh::open_network(const Directory& directory) {
  const Status listening = listen_on_rails();
  const Status told = directory.set(
      str_cat("rails/", options_.rank),
      listening.ok() ? encode_rails(own_endpoints_) : encode_no_rails(listening.message()));
  DMLCOMM_RETURN_IF_ERROR(listening);
  DMLCOMM_RETURN_IF_ERROR(told);
  for (int rank = 0; rank < options_.num_ranks; ++rank) {
    if (rank == options_.rank || shares_memory(rank)) continue;
    Result<std::string> text = directory.get(str_cat("rails/", rank));
    if (!text.ok()) return text.status();
    Result<std::vector<RailEndpoint>> endpoints = decode_rails(*text);
    if (!endpoints.ok()) {
      return Status(endpoints.status().code(),
                    str_cat("rank ", rank, " on host ", hosts_[rank].host_name, ": ",
                            endpoints.status().message()));
    }
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

int Mesh::num_ranks_on_machine() const {
  const std::string own = hosts_[options_.rank].machine_id();
  return static_cast<int>(std::count_if(
      hosts_.begin(), hosts_.end(), [&](const HostAddress& h) { return h.machine_id() == own; }));
}

bool Mesh::same_host(int peer) const {
  return hosts_[peer].host_id == hosts_[options_.rank].host_id;
}

void Mesh::notify(int peer) {
  if (links_[peer] && links_[peer]->channel()) links_[peer]->channel()->notify();
}

// --- events ---

bool Mesh::poll(bool look_at_sockets) {
  if (look_at_sockets) {
    epoll_event events[32];
    const int count = epoll_wait(epoll_.get(), events, 32, 0);
    for (int i = 0; i < count; ++i) {
      on_event(events[i].data.u64, events[i].events);
    }
  }
  bool moved = false;
  for (size_t i = 0; i < active_.size(); ++i) {
    moved |= active_[i]->progress();
    if (active_[i]->has_ended()) {
      active_[i]->discard_input();
      active_[i]->flush_last_words();
    }
    for (size_t lane : active_[i]->take_lost_lanes()) lane_lost(active_[i]->peer(), lane);
  }
  return moved;
}

void Mesh::flush_deferred() {
  for (Link* link : active_) link->flush_deferred();
}

void Mesh::on_event(uint64_t what, uint32_t events) {
  const auto number = static_cast<uint32_t>(what & kNumberMask);
  switch (what & ~kNumberMask) {
    case kDoorbell: {
      uint64_t count;
      (void)!read(doorbell_.get(), &count, sizeof(count));
      break;
    }
    case kUnixListener: accept_all(unix_listener_.get(), true); break;
    case kTcpListener:
      // An event may come for a listener that was closed since.
      if (number < listeners_.size()) accept_all(listeners_[number].fd.get(), false);
      break;
    case kHandshake: advance_handshake(number); break;
    case kLink: {
      Link& link = *links_[number & kPeerMask];
      if (Channel* channel = link.channel(number >> kLaneShift)) {
        channel->descriptor_ready({.readable = (events & ~EPOLLOUT) != 0,
                                   .writable = (events & EPOLLOUT) != 0,
                                   .ended = (events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0});
      }
      break;
    }
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
    const Channel* channel = link->state() == Link::State::up ? link->channel() : nullptr;
    news = news || (channel && !channel->needs_heartbeats() && channel->maybe_readable());
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
  const bool paused = now - last_tick_ns_ > 4 * heartbeat_ms_ * kNsPerMs;
  last_tick_ns_ = now;
  expire_handshakes();
  if (options_.rails.size() > 1) check_rails(now, paused);
  retry_connects();
  const bool says_alive = now >= next_heartbeat_ns_;
  if (says_alive) next_heartbeat_ns_ = now + heartbeat_ms_ * kNsPerMs;
  const auto timeout_ns = static_cast<int64_t>(options_.config.peer_timeout_s * kNsPerS);
  for (size_t i = 0; i < active_.size(); ++i) {
    Link& link = *active_[i];
    if (link.state() != Link::State::up) continue;
    const bool by_frames = link.channel() == nullptr || link.channel()->needs_heartbeats();
    if (by_frames && says_alive) link.heartbeat();
    link.confirm_soon();
    int64_t& last_life = last_life_ns_[link.peer()];
    if (link.take_sign_of_life() || paused) last_life = now;
    if (now - last_life < timeout_ns) continue;
    if (!link.has_outstanding() && !waits_for(link.peer())) continue;
    link.fail(Status(StatusCode::peer_lost,
                     str_cat("no sign of life for ", options_.config.peer_timeout_s,
                             " s (DMLCOMM_PEER_TIMEOUT_S); it is frozen, or cut off")));
  }
}

// Gives up rails that do not carry any more.
void Mesh::check_rails(int64_t now, bool paused) {
  check_carriers();
  if (paused) return;
  for (size_t i = 0; i < active_.size(); ++i) {
    if (active_[i]->num_lanes() > 1) active_[i]->lose_stalled_lanes(now, kStallNs);
  }
}

// --- the end ---

void Mesh::fail_all(const Status& reason) {
  end_reason_ = reason;
  for (Link* link : active_) link->end(reason);
  handshakes_.clear();
  // Ranks that have not met us yet find nobody.
  listeners_.clear();
  unix_listener_.reset();
}

bool Mesh::has_writer() const {
  return std::any_of(active_.begin(), active_.end(), [](Link* link) { return link->has_writer(); });
}

void Mesh::close() {
  if (std::exchange(closed_, true)) return;
  const auto busy = [](Link* link) {
    link->confirm_soon();
    // A peer that has closed its end reads nothing any more.
    const bool has_last_words = link->flush_last_words() && link->discard_input();
    return link->wants_to_write() || link->awaits_receipts() || has_last_words;
  };
  poll_while(busy, kCloseTimeoutS);
  bool failed = false;
  for (Link* link : active_) {
    failed |= link->state() == Link::State::failed;
    link->send_goodbye();
  }
  (void)poll(true);
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

std::vector<RailCounters> Mesh::counters() const {
  std::vector<RailCounters> all = counters_;
  all.push_back(local_counters_);
  return all;
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
