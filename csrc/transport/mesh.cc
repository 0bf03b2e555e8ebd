#include "transport/mesh.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/clock.h"
#include "base/str_cat.h"
#include "base/ticket.h"

namespace dmlcomm::transport {
namespace {

constexpr int kRailCheckMs = 50;
constexpr uint32_t kMaxDscp = 63;
// close() gives last words this long to leave, and peers to confirm what their kernels have.
constexpr double kCloseTimeoutS = 1.0;
// ...and after a failure waits so long for the peers to close, too.
constexpr double kFailedCloseTimeoutS = 0.3;

int choose_heartbeat_ms(double peer_timeout_s) {
  return std::clamp(static_cast<int>(peer_timeout_s * 1000 / 8), 10, 250);
}

// In each direction each rank may connect all lanes, also over loopback.
size_t max_connections(const MeshOptions& options) {
  const size_t lanes_per_rail = kDetourLanes + kMaxTicketConnections;
  return 2 * lanes_per_rail * (options.rails.size() + 1) * static_cast<size_t>(options.num_ranks);
}

}  // namespace

Mesh::Mesh(const MeshOptions& options)
    : job_{options, {}, {}},
      heartbeat_ms_(choose_heartbeat_ms(options.config.peer_timeout_s)),
      tick_ms_(options.rails.size() > 1 ? std::min(kRailCheckMs, heartbeat_ms_) : heartbeat_ms_),
      peers_(static_cast<size_t>(options.num_ranks)),
      repair_(job_, loop_, admission_, peers_, [this](int peer) { make_link(peer); }),
      admission_(job_, loop_, repair_, max_connections(options)),
      last_life_ns_(peers_.size()),
      heard_ns_(peers_.size()) {
  for (const RailAddress& rail : options.rails) {
    counters_.push_back({.interface = rail.interface});
  }
  counters_.push_back({.interface = "local"});
  meters_.resize(options.rails.size());
  for (size_t rail = 0; rail < meters_.size(); ++rail) {
    const std::string& interface = options.rails[rail].interface;
    meters_[rail].arbitrate({options.seat, interface, Direction::out},
                            {options.seat, interface, Direction::in});
    meters_[rail].share_urgent(UrgentTimes::of(interface));
    const std::vector<uint64_t>& rates = options.rail_rates_bps;
    if (!rates.empty()) {
      meters_[rail].assume(static_cast<double>(rates[std::min(rail, rates.size() - 1)]));
    }
  }
  last_tick_ns_ = now_ns();
}

Mesh::~Mesh() { close(); }

Result<std::unique_ptr<Mesh>> Mesh::create(const MeshOptions& options, Rendezvous& rendezvous) {
  std::unique_ptr<Mesh> mesh(new Mesh(options));
  Status status = mesh->meet(rendezvous);
  if (status.ok()) return mesh;
  mesh->admission_.close();
  return status;
}

// --- how ranks find each other ---

Status Mesh::meet(Rendezvous& rendezvous) {
  DMLCOMM_RETURN_IF_ERROR(loop_.open());
  Result<JobKey> key = JobKey::random();
  if (!key.ok()) return key.status();
  job_.key = *key;
  job_.hosts.resize(peers_.size());
  HostAddress& own = job_.hosts[job_.rank];
  own = local_host_address();
  own.tunes = job_.tunes;
  own.probes = job_.config.probe;
  own.ticket_connections = job_.config.ticket_connections;
  own.transport = to_string(job_.config.transport);
  own.unix_name = str_cat("dmlcomm-", job_.key.job_id, "-", job_.rank);
  transports_ = make_transports(job_, loop_);
  for (const auto& transport : transports_) {
    DMLCOMM_RETURN_IF_ERROR(transport->listen(admission_));
  }
  DMLCOMM_RETURN_IF_ERROR(read_hosts(rendezvous));
  return choose_transports(rendezvous);
}

// Every rank publishes a key beside its address, and that of rank 0 is the job's: so one exchange
// is enough. A mark of its key shows that it has the same secret of the user.
Status Mesh::read_hosts(Rendezvous& rendezvous) {
  const std::string& secret = job_.config.secret;
  const std::string own_key = job_.key.encode();
  const std::string own =
      str_cat(own_key, "\n", JobKey::mark_of(secret, own_key), "\n", job_.own_host().encode());
  Result<std::vector<std::string>> texts =
      rendezvous.exchange("host", job_.rank, job_.num_ranks, own, job_.timeout);
  if (!texts.ok()) return texts.status();
  Result<JobKey> key = JobKey::decode(texts->front());
  if (!key.ok()) return key.status();
  job_.key = *key;
  job_.key.mix_in(secret);
  for (int rank = 0; rank < job_.num_ranks; ++rank) {
    if (rank == job_.rank) continue;
    const std::string& text = (*texts)[rank];
    const size_t mark = text.find('\n') + 1;
    const size_t address = text.find('\n', mark) + 1;
    Result<HostAddress> host = HostAddress::decode(text.substr(address));
    if (!host.ok()) {
      return Status(host.status().code(), "rank ", rank, ": ", host.status().message());
    }
    if (text.substr(mark, address - mark - 1) !=
        JobKey::mark_of(secret, text.substr(0, mark - 1))) {
      return Status(StatusCode::invalid_argument, "rank ", rank, " on host ", host->host_name,
                    " has not the DMLCOMM_SECRET of rank ", job_.rank,
                    "; give all ranks the same, or none of them any");
    }
    job_.hosts[rank] = *host;
    if (!job_.same_host(rank) && job_.config.transport == TransportChoice::shm) {
      return Status(
          StatusCode::invalid_argument,
          str_cat("DMLCOMM_TRANSPORT=shm, but rank ", rank, " is on host ", host->host_name,
                  " and rank ", job_.rank, " on ", job_.own_host().host_name, "; use auto or tcp"));
    }
  }
  return check_same_settings(job_.hosts);
}

// The first one that reaches a peer carries what goes there. This rank counts as one of its peers.
Status Mesh::choose_transports(Rendezvous& rendezvous) {
  for (const auto& transport : transports_) {
    std::vector<int> reached;
    for (int rank = 0; rank < job_.num_ranks; ++rank) {
      Peer& peer = peers_[rank];
      if (peer.transport != nullptr || !transport->reaches(rank)) continue;
      peer.transport = transport.get();
      peer.counters = job_.same_host(rank) ? &counters_.back() : counters_.data();
      peer.meters = job_.same_host(rank) ? nullptr : meters_.data();
      reached.push_back(rank);
    }
    if (reached.empty()) continue;
    if (transport->has_shared_areas()) num_sharing_ = static_cast<int>(reached.size());
    if (transport->needs_poll()) polled_.push_back(transport.get());
    DMLCOMM_RETURN_IF_ERROR(transport->meet(reached, rendezvous, admission_));
  }
  return Status();
}

Link& Mesh::link(int peer) {
  Peer& to = peers_[peer];
  if (!to.link) {
    DMLCOMM_CHECK(peer != job_.rank);
    make_link(peer);
    if (may_connect()) repair_.connect(peer);
  }
  return *to.link;
}

void Mesh::connect_all() {
  for (int peer = 0; peer < job_.num_ranks; ++peer) {
    if (peer == job_.rank || peers_[peer].link) continue;
    make_link(peer);
    if (may_connect()) repair_.connect_from_one_side(peer);
  }
}

void Mesh::make_link(int peer) {
  Peer& to = peers_[peer];
  to.link = std::make_unique<Link>(repair_.link_options(peer));
  to.connections.resize(to.link->num_lanes());
  if (limits_credit_) to.link->limit_credit();
  if (class_mark_ > 0) to.link->mark_class(static_cast<uint8_t>(class_mark_ - 1));
  active_.push_back(to.link.get());
  last_life_ns_[peer] = to.connecting_since_ns = now_ns();
  heard_ns_[peer].store(last_life_ns_[peer]);
  // The communicator has failed: nobody looks after new requests any more.
  if (!end_reason_.ok()) to.link->end(end_reason_);
  if (!drop_reason_.empty()) to.link->fail(Status(StatusCode::aborted, drop_reason_));
}

std::byte* Mesh::shared_area(int rank) const { return peers_[rank].transport->shared_area(rank); }

void Mesh::notify(int peer) {
  Link* const link = existing_link(peer);
  if (link && link->channel()) link->channel()->notify();
}

// --- events ---

bool Mesh::poll(bool look_at_sockets) {
  if (look_at_sockets) loop_.look();
  for (Transport* transport : polled_) transport->poll();
  const auto has_urgent = [](const RailMeter& meter) { return meter.urgent().has_any(); };
  if (!limits_credit_ && std::ranges::any_of(meters_, has_urgent)) limit_credit();
  bool moved = false;
  for (size_t i = 0; i < active_.size(); ++i) {
    moved |= active_[i]->progress();
    if (active_[i]->has_ended()) {
      active_[i]->discard_input();
      active_[i]->flush_last_words();
    }
    for (size_t lane : active_[i]->take_lost_lanes()) repair_.lane_lost(active_[i]->peer(), lane);
    for (size_t lane : active_[i]->take_wanted_lanes()) {
      repair_.lane_wanted(active_[i]->peer(), lane);
    }
  }
  return moved;
}

void Mesh::flush_deferred() {
  for (Link* link : active_) link->flush_deferred();
}

void Mesh::sleep(int timeout_ms, const std::function<bool()>& has_news) {
  // A budget that is used up fills with time, and so does room for lanes that give way.
  bool is_short = share_ < 1;
  for (RailMeter& meter : meters_) is_short |= meter.take_yielding();
  loop_.sleep(is_short ? std::min(timeout_ms, 1) : timeout_ms, [&] {
    bool news = has_news();
    for (Transport* transport : polled_) news = news || !transport->arm();
    for (Link* link : active_) {
      const Channel* channel = link->state() == Link::State::up ? link->channel() : nullptr;
      news = news || (channel && !channel->needs_epoll() && channel->maybe_readable());
    }
    return news;
  });
}

bool Mesh::wants_to_write() const {
  return std::any_of(active_.begin(), active_.end(),
                     [](const Link* link) { return link->wants_to_write(); });
}

void Mesh::tick(const std::function<bool(int)>& waits_for) {
  const int64_t now = now_ns();
  look_at_seat();
  for (const auto& transport : transports_) transport->show_life();
  // A process that was stopped itself must not blame its peers for the pause.
  const int64_t since_ns = now - std::exchange(last_tick_ns_, now);
  const bool paused = since_ns > 4 * heartbeat_ms_ * kNsPerMs;
  if (paused) repair_.give_more_time(since_ns);
  admission_.tick();
  const auto may_lose_lanes = [](const Link* link) { return link->may_lose_lanes(); };
  if (std::any_of(active_.begin(), active_.end(), may_lose_lanes)) check_rails(now, paused);
  repair_.tick(now);
  const bool says_alive = now >= next_heartbeat_ns_;
  if (says_alive) next_heartbeat_ns_ = now + heartbeat_ms_ * kNsPerMs;
  for (size_t i = 0; i < active_.size(); ++i) {
    Link& link = *active_[i];
    if (link.state() == Link::State::up) {
      const bool by_frames = link.channel() == nullptr || link.channel()->needs_heartbeats();
      if (by_frames && says_alive) link.heartbeat();
      link.confirm_soon();
    }
    check_life(link, now, paused, waits_for);
  }
}

// A job that goes behind others keeps little in the kernel's queues, from then on.
void Mesh::look_at_seat() {
  if (job_.seat == nullptr) return;
  const auto is_limited = [](const RailMeter& meter) { return meter.credit().is_limited(); };
  if (std::any_of(meters_.begin(), meters_.end(), is_limited)) limit_credit();
  const uint32_t mark = job_.seat->page().class_mark.load(std::memory_order_relaxed);
  if (mark != class_mark_ && mark <= kMaxDscp + 1) {
    class_mark_ = mark;
    const auto dscp = static_cast<uint8_t>(mark > 0 ? mark - 1 : 0);
    for (Link* link : active_) link->mark_class(dscp);
  }
  if (!drop_reason_.empty()) return;
  drop_reason_ = job_.seat->reason();
  if (drop_reason_.empty()) return;
  for (size_t i = 0; i < active_.size(); ++i) {
    active_[i]->fail(Status(StatusCode::aborted, drop_reason_));
  }
}

void Mesh::check_life(Link& link, int64_t now, bool paused,
                      const std::function<bool(int)>& waits_for) {
  int64_t& last_life = last_life_ns_[static_cast<size_t>(link.peer())];
  if (paused) last_life = now;
  if (link.take_sign_of_life(now - last_life)) {
    last_life = now;
    heard_ns_[static_cast<size_t>(link.peer())].store(now);
  }
  const double timeout_s = job_.config.peer_timeout_s;
  if (now - last_life < static_cast<int64_t>(timeout_s * kNsPerS)) return;
  if (!link.has_outstanding() && !waits_for(link.peer())) return;
  link.fail(Status(StatusCode::peer_lost,
                   str_cat("no sign of life for ", timeout_s,
                           " s (DMLCOMM_PEER_TIMEOUT_S); it is frozen, or cut off")));
}

double Mesh::silent_s(int peer) const {
  return static_cast<double>(now_ns() - heard_ns_[static_cast<size_t>(peer)].load()) / kNsPerS;
}

// Gives up rails that do not carry any more.
void Mesh::check_rails(int64_t now, bool paused) {
  for (const auto& transport : transports_) {
    for (const Transport::RailChange& change : transport->changed_rails()) {
      repair_.rail_changed(*transport, change);
    }
  }
  if (paused) return;
  for (size_t i = 0; i < active_.size(); ++i) {
    if (active_[i]->may_lose_lanes()) active_[i]->lose_stalled_lanes(now);
  }
}

std::vector<RailCounters> Mesh::counters() const {
  std::vector<RailCounters> counters = counters_;
  std::vector<uint64_t> blocking(meters_.size());  // of all links to other hosts, which share rails
  for (const Link* link : active_) {
    const bool is_local = job_.same_host(link->peer());
    link->for_each_lane([&](size_t rail, Lane& lane) {
      const std::string congestion = lane.channel().congestion();
      RailCounters& of_rail = is_local ? counters.back() : counters[rail];
      if (!congestion.empty()) of_rail.congestion.insert(congestion);
      if (!is_local) blocking[rail] += lane.blocking_bytes();
    });
  }
  for (size_t rail = 0; rail < meters_.size(); ++rail) {
    const double bits_per_us = meters_[rail].bits_per_second() * 1e-6;
    if (bits_per_us > 0) {
      counters[rail].blocking_us = 8 * static_cast<double>(blocking[rail]) / bits_per_us;
    }
    counters[rail].bits_per_second = meters_[rail].bits_per_second();
    counters[rail].round_trip_us = meters_[rail].round_trip_us();
    counters[rail].bytes_resent = meters_[rail].bytes_resent();
  }
  return counters;
}

void Mesh::measure_rails(int64_t active_ns, double latency_s, RailMeter::Traffic traffic) {
  for (Link* link : active_) link->measure();
  const int64_t now = now_ns();
  if (std::exchange(was_shared_, share_ < 1) && traffic != RailMeter::Traffic::mixed) {
    traffic = RailMeter::Traffic::slowed;
  }
  const RailMeter::Others others = RailMeter::others_of(meters_, now);
  for (RailMeter& meter : meters_) {
    const bool was_behind = meter.credit().is_limited() && traffic != RailMeter::Traffic::mixed;
    const auto of_rail = was_behind ? RailMeter::Traffic::slowed : traffic;
    meter.end_period(now, active_ns, latency_s, of_rail, others);
    meter.tell_arbiter();
  }
}

void Mesh::share_rails(double share) {
  share_ = share;
  was_shared_ |= share < 1;
  for (RailMeter& meter : meters_) meter.share(share);
}

void Mesh::limit_credit() {
  if (std::exchange(limits_credit_, true)) return;
  for (Link* link : active_) link->limit_credit();
}

// --- the end ---

// Connections that are on their way are still admitted, so that these peers hear the reason, too.
void Mesh::fail_all(const Status& reason) {
  end_reason_ = reason;
  for (Link* link : active_) link->end(reason);
}

bool Mesh::has_writer() const {
  return std::any_of(active_.begin(), active_.end(), [](Link* link) { return link->has_writer(); });
}

// Until the peers have what operations sent that have ended: small messages are copied, and may
// take a while to arrive. A peer that takes no more of them is lost after its timeout. Last words
// have their time, and are no reason to wait for a peer.
void Mesh::deliver() {
  const Deadline last_words = Deadline::after_s(kCloseTimeoutS);
  int64_t moved_ns = now_ns();
  for (size_t num_left = SIZE_MAX;;) {
    size_t left = 0;
    bool speaks = false;
    for (Link* link : active_) {
      link->confirm_soon();
      left += link->num_unconfirmed();
      // A peer that has closed its end reads nothing any more.
      speaks |= link->flush_last_words() && link->discard_input();
    }
    if (left < std::exchange(num_left, left)) moved_ns = now_ns();
    const bool delivers = left > 0 && now_ns() - moved_ns < patience_ns();
    if (!delivers && (!speaks || last_words.expired())) return;
    if (now_ns() - last_tick_ns_ >= tick_ms_ * kNsPerMs) tick([](int) { return false; });
    if (!poll(true)) sleep(1, [] { return false; });
  }
}

// How long nothing may be confirmed before it is given up. Bytes that a peer's kernel has are read,
// if the peer lives, without us.
int64_t Mesh::patience_ns() const {
  const double peer_timeout_s = std::max(kCloseTimeoutS, job_.config.peer_timeout_s);
  const double seconds = has_bytes_on_the_way() ? peer_timeout_s : kCloseTimeoutS;
  return static_cast<int64_t>(seconds * kNsPerS);
}

bool Mesh::has_bytes_on_the_way() const {
  return std::any_of(active_.begin(), active_.end(),
                     [](const Link* link) { return link->has_bytes_on_the_way(); });
}

void Mesh::close() {
  if (std::exchange(closed_, true)) return;
  deliver();
  bool failed = !end_reason_.ok();
  for (Link* link : active_) {
    failed |= link->state() == Link::State::failed;
    link->send_goodbye();
  }
  (void)poll(true);
  if (failed) {
    // Everybody closes soon, and should hear the reason before the connection goes.
    poll_while(
        [this] {
          // Of every link, since each call moves one.
          const auto is_open = [](Link* link) { return link->discard_input(); };
          return std::count_if(active_.begin(), active_.end(), is_open) > 0 || admission_.is_busy();
        },
        kFailedCloseTimeoutS);
  } else {
    // What comes after the connection has gone resets it, and loses a goodbye that is on its way.
    poll_while([this] { return has_bytes_on_the_way(); }, kCloseTimeoutS);
  }
  active_.clear();
  admission_.close();
  for (Peer& peer : peers_) peer.link.reset();
  for (const auto& transport : transports_) transport->close();
}

void Mesh::poll_while(const std::function<bool()>& is_busy, double timeout_s) {
  const Deadline deadline = Deadline::after_s(timeout_s);
  while (is_busy() && !deadline.expired()) {
    if (!poll(true)) sleep(1, [] { return false; });
  }
}

std::string Mesh::description() const {
  std::string text =
      str_cat("host ", job_.own_host().host_name, ", ", num_sharing_ - 1,
              " peers through shared memory, ", job_.num_ranks - num_sharing_, " over the network");
  for (const auto& transport : transports_) text += transport->description();
  return text;
}

}  // namespace dmlcomm::transport
