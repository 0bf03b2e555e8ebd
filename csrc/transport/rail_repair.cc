#include "transport/rail_repair.h"

#include <algorithm>
#include <utility>

#include "base/clock.h"
#include "base/log.h"
#include "base/str_cat.h"

namespace dmlcomm::transport {
namespace {

// Repeated attempts wait this long, and twice as long each time up to the second.
constexpr int64_t kRetryNs = 20 * kNsPerMs;
constexpr int64_t kMaxRetryNs = 1000 * kNsPerMs;
constexpr double kRepairTimeoutS = 1.0;
// The other rails are tried as well when the first one takes longer.
constexpr int64_t kFallbackNs = 500 * kNsPerMs;

// A connection that the other side begins may take so long, and so much longer per rank: all ranks
// of a host may begin at once.
constexpr int64_t kExpectedNs = 500 * kNsPerMs;
constexpr int64_t kExpectedPerRankNs = 20 * kNsPerMs;

// The number of an event of a channel: its lane above the peer.
constexpr int kLaneShift = 24;
constexpr uint32_t kPeerMask = (1u << kLaneShift) - 1;

bool is_open(const Link& link) {
  return link.state() == Link::State::connecting || link.state() == Link::State::up;
}

// A link that has ended tells the peer why. It does not begin with a lane for urgent messages.
bool may_attach(Link& link, size_t lane) {
  if (link.state() == Link::State::connecting && !link.is_usual(lane)) return false;
  return (is_open(link) || link.has_ended()) && link.channel(lane) == nullptr;
}

}  // namespace

RailRepair::RailRepair(const Job& job, EventLoop& loop, Admission& admission,
                       std::vector<Peer>& peers, std::function<void(int)> make_link)
    : job_(job),
      loop_(loop),
      admission_(admission),
      peers_(peers),
      make_link_(std::move(make_link)),
      source_(loop.add([this](uint32_t number, Channel::Ready ready) {
        Link& link = *peers_[number & kPeerMask].link;
        if (Channel* channel = link.channel(number >> kLaneShift)) channel->descriptor_ready(ready);
      })) {}

size_t RailRepair::num_rails(int peer) const {
  return std::max<size_t>(1, peers_[peer].transport->num_rails(peer));
}

uint8_t RailRepair::first_rail(int peer) const {
  return job_.first_rail.empty() ? kAnyRail : job_.first_rail[peer];
}

LinkOptions RailRepair::link_options(int peer) const {
  LinkOptions options;
  options.rank = job_.rank;
  options.peer = peer;
  options.job_id = job_.key.job_id;
  options.num_rails = num_rails(peer);
  options.events = job_.events;
  options.counters = peers_[peer].counters;
  options.meters = peers_[peer].meters;
  options.lanes_per_rail = job_.first_rail.empty() || options.num_rails < 2 ? 1 : kDetourLanes;
  options.first_rail = first_rail(peer);
  options.credit_bytes = job_.same_host(peer) ? 0 : job_.config.credit_bytes.value_or(0);
  options.num_classes = job_.same_host(peer) ? 0 : job_.config.ticket_connections;
  options.reconnects = !job_.same_host(peer);
  options.reads_alone = job_.reads_alone;
  return options;
}

// Of the usual lanes. The rail that leads to the peer has one.
bool RailRepair::is_used(int peer, size_t lane) const {
  if (!peers_[peer].link->is_usual(lane)) return false;
  return lane < num_rails(peer) || lane % num_rails(peer) != first_rail(peer);
}

void RailRepair::connect(int peer) {
  const Transport& transport = *peers_[peer].transport;
  if (transport.num_rails(peer) == 0) {
    return peers_[peer].link->fail(
        Status(StatusCode::io_error, str_cat("no common rail", transport.advice())));
  }
  const uint8_t first = first_rail(peer);
  if (first < peers_[peer].connections.size()) return connect_lane(peer, first);
  connect_missing(peer, true);
}

// Half of the peers are those that connect, whatever the rank.
void RailRepair::connect_from_one_side(int peer) {
  const bool lower_connects = (job_.rank + peer) % 2 == 0;
  if ((job_.rank < peer) == lower_connects) return connect(peer);
  const int64_t expected_ns = kExpectedNs + job_.num_ranks * kExpectedPerRankNs;
  for (Connection& each : peers_[peer].connections) each.retry_at_ns = now_ns() + expected_ns;
}

// `again`: also what has failed, and has a time at which it is tried again.
void RailRepair::connect_missing(int peer, bool again) {
  const Link& link = *peers_[peer].link;
  for (size_t lane = 0; lane < peers_[peer].connections.size(); ++lane) {
    if (link.state() == Link::State::failed) return;
    const Connection& connection = peers_[peer].connections[lane];
    const bool is_missing = !connection.attempted && peers_[peer].link->channel(lane) == nullptr;
    const bool may_begin = again || connection.retry_at_ns == 0;
    if (is_missing && may_begin && is_used(peer, lane)) connect_lane(peer, lane);
  }
}

void RailRepair::connect_lane(int peer, size_t lane) {
  Transport& transport = *peers_[peer].transport;
  Connection& connection = peers_[peer].connections[lane];
  connection.attempted = true;
  connection.retry_at_ns = 0;
  Result<Attempt> attempt = transport.connect(peer, lane);
  if (!attempt.ok()) {
    return failed(peer, lane, attempt.status(), attempt.status().code() == StatusCode::peer_lost);
  }
  const bool is_first = peers_[peer].link->state() == Link::State::connecting;
  // Odd numbers are those of the higher rank: the two sides never give the same one.
  const uint64_t number = 2 * ++num_connects_ + (job_.rank > peer ? 1 : 0);
  admission_.enter(std::move(*attempt), transport, peer, lane, transport.route(peer, lane), number,
                   is_first ? time_left_s(peer) : kRepairTimeoutS);
}

// A peer that has published its addresses listens: if it refuses, it is gone. Everything else (a
// reset, a full port table, an unreachable host) may do better next time.
void RailRepair::failed(int peer, size_t lane, const Status& status, bool refused) {
  Link& link = *peers_[peer].link;
  if (!is_open(link)) return;
  Connection& connection = peers_[peer].connections[lane];
  connection.attempted = false;
  if (peers_[peer].transport->has_other_way(peer, lane, &refused) && !link.channel(lane)) {
    log_info(status.message(), "; trying another way");
    return connect_lane(peer, lane);
  }
  const bool has_failed_before = std::exchange(connection.failed, true);
  connection.wait_ns = std::clamp(2 * connection.wait_ns, kRetryNs, kMaxRetryNs);
  connection.retry_at_ns = now_ns() + connection.wait_ns;
  if (link.has_lane()) return;
  const bool is_first = link.state() == Link::State::connecting;
  const bool may_recover =
      !refused && (status.code() == StatusCode::io_error || status.code() == StatusCode::peer_lost);
  const bool has_ended = connection.was_up && refused;
  const bool no_way_is_left = is_first && all_have_failed(peer);
  if (has_ended || (no_way_is_left && !may_recover)) {
    return link.fail(
        Status(status.code(), str_cat(status.message(), peers_[peer].transport->advice())));
  }
  if (!is_first) return;
  peers_[peer].last_failure = status;
  if (!has_failed_before) {
    log_warning(status.message(), no_way_is_left ? "; trying again" : "; trying the other rails");
  }
  connect_missing(peer, false);
}

// Of the time that a link has to be connected.
double RailRepair::time_left_s(int peer) const {
  const int64_t waited_ns = now_ns() - peers_[peer].connecting_since_ns;
  const double waited_s = static_cast<double>(waited_ns) / static_cast<double>(kNsPerS);
  return std::max(0.0, job_.config.peer_timeout_s - waited_s);
}

void RailRepair::give_more_time(int64_t ns) {
  const int64_t now = now_ns();
  for (Peer& peer : peers_) {
    peer.connecting_since_ns = std::min(peer.connecting_since_ns + ns, now);
  }
}

void RailRepair::give_up(int peer) {
  const Status& failure = peers_[peer].last_failure;
  peers_[peer].link->fail(Status(
      failure.code(), str_cat(failure.message(), "; tried again for ", job_.config.peer_timeout_s,
                              " s (DMLCOMM_PEER_TIMEOUT_S)", peers_[peer].transport->advice())));
}

bool RailRepair::all_have_failed(int peer) const {
  for (size_t lane = 0; lane < peers_[peer].connections.size(); ++lane) {
    if (is_used(peer, lane) && !peers_[peer].connections[lane].failed) return false;
  }
  return true;
}

void RailRepair::lane_lost(int peer, size_t lane) {
  Connection& connection = peers_[peer].connections[lane];
  num_watched_ -= std::exchange(connection.is_watched, false) ? 1 : 0;
  connection.wait_ns = 0;
  connection.retry_at_ns = now_ns() + kRetryNs;
  if (peers_[peer].link->has_lane()) return;
  for (Connection& each : peers_[peer].connections) each.wait_ns = 0;
  connect_missing(peer, true);
}

// The peer may have connected it before, or begun to.
void RailRepair::lane_wanted(int peer, size_t lane) {
  const Connection& connection = peers_[peer].connections[lane];
  Link& link = *peers_[peer].link;
  const bool is_planned = connection.attempted || connection.retry_at_ns != 0;
  if (is_open(link) && !is_planned && link.channel(lane) == nullptr) connect_lane(peer, lane);
}

// While other lanes live, the higher rank repairs. A link that fails may make others.
void RailRepair::tick(int64_t now) {
  for (int peer = 0; peer < job_.num_ranks; ++peer) {
    if (!peers_[peer].link || !is_open(*peers_[peer].link)) continue;
    Link& link = *peers_[peer].link;
    const bool is_first = link.state() == Link::State::connecting;
    if (is_first && all_have_failed(peer) && time_left_s(peer) <= 0) {
      give_up(peer);
      continue;
    }
    if (is_first && now - peers_[peer].connecting_since_ns > kFallbackNs)
      connect_missing(peer, false);
    for (size_t lane = 0; lane < peers_[peer].connections.size(); ++lane) {
      const Connection& connection = peers_[peer].connections[lane];
      const bool is_due = connection.retry_at_ns != 0 && now >= connection.retry_at_ns;
      if (!is_due || connection.attempted || link.channel(lane) != nullptr) continue;
      const bool ours = is_first || !link.has_lane() || job_.rank > peer || !connection.was_up;
      if (ours) connect_lane(peer, lane);
    }
  }
}

void RailRepair::rail_changed(const Transport& transport, Transport::RailChange change) {
  const std::string& interface = job_.rails[change.rail].interface;
  log_warning("rail ", interface, change.is_up ? " has its carrier back" : " has lost its carrier");
  for (int peer = 0; peer < job_.num_ranks; ++peer) {
    Link* const link = peers_[peer].link.get();
    if (link == nullptr || peers_[peer].transport != &transport || !link->may_lose_lanes())
      continue;
    for (size_t lane = 0; lane < link->num_lanes(); ++lane) {
      if (lane % num_rails(peer) != change.rail) continue;
      Connection& connection = peers_[peer].connections[lane];
      if (!change.is_up) {
        link->lose_lane(lane, str_cat(interface, " has no carrier"));
        continue;
      }
      connection.wait_ns = 0;
      connection.retry_at_ns = std::min<int64_t>(connection.retry_at_ns, 1);
    }
  }
}

// --- what admission asks and says ---

RailRepair::Answer RailRepair::answer(const Handshake& handshake) {
  const int peer = static_cast<int>(handshake.received().rank);
  const size_t lane = handshake.received().lane;
  if (handshake.transport() != peers_[peer].transport) return Answer::none;
  if (peers_[peer].transport->num_rails(peer) == 0) return Answer::none;
  const size_t num_lanes = link_options(peer).num_lanes();
  if (lane >= num_lanes) {
    if (!std::exchange(peers_[peer].has_lane_too_many, true)) {
      log_warning("rank ", peer, " on host ", job_.hosts[peer].host_name, " makes connection ",
                  lane + 1, " to this rank, where ", num_lanes, " is the most; do all ranks have ",
                  "the same settings?");
    }
    return Answer::none;
  }
  if (!peers_[peer].link) make_link_(peer);
  Link& link = *peers_[peer].link;
  // The higher rank knows better whether the lane of before still lives.
  if (link.may_lose_lanes() && link.channel(lane) != nullptr && peer > job_.rank) {
    link.lose_lane(lane, "the peer has connected anew");
  }
  const Connection& connection = peers_[peer].connections[lane];
  const bool own_wins = connection.attempted && job_.rank > peer && connection.retry_at_ns == 0;
  const bool is_wanted = may_attach(link, lane);
  return is_wanted && !own_wins ? Answer::welcome : Answer::yield;
}

// The peer's connection is on its way. Should that come to nothing, try again.
void RailRepair::yielded(int peer, size_t lane) {
  Connection& connection = peers_[peer].connections[lane];
  connection.attempted = false;
  connection.retry_at_ns = now_ns() + kRetryNs;
}

void RailRepair::admitted(Handshake& handshake) {
  const int peer = static_cast<int>(handshake.received().rank);
  const size_t lane = handshake.received().lane;
  Link& link = *peers_[peer].link;
  if (!may_attach(link, lane)) return;
  Connection& connection = peers_[peer].connections[lane];
  const bool is_back = connection.was_up;
  connection = {.was_up = true};
  const size_t rail = lane % num_rails(peer);
  Result<std::unique_ptr<Channel>> opened =
      peers_[peer].transport->open(peer, rail, link.is_alone(lane), handshake);
  if (!opened.ok()) return link.fail(opened.status());
  Channel& channel = **opened;
  connection.is_watched = channel.needs_epoll();
  num_watched_ += connection.is_watched ? 1 : 0;
  link.attach(lane, std::move(*opened), handshake.received().connection);
  const uint32_t number = static_cast<uint32_t>(lane << kLaneShift) | static_cast<uint32_t>(peer);
  Status watched;
  if (channel.descriptor() >= 0) watched = loop_.watch(channel.descriptor(), source_, number, true);
  if (!watched.ok()) link.fail(watched);
  if (!is_back) return;
  ++peers_[peer].counters[rail].lanes_back;
  job_.events->on_rail_event(peer, false, str_cat(channel.description(), " is back"));
}

}  // namespace dmlcomm::transport
