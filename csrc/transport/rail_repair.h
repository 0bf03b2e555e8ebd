// RailRepair: makes the connections to peers, one per lane, and replaces those that are lost.
//
// The first side that needs a connection makes it; if both do, the higher rank's connection wins.
// Lanes for urgent messages are made when they are first of use, and nothing waits for them.
// If a rail dies while others live, the higher rank connects it again, in the background. If a link
// has no lane left, both sides connect, over all rails. Attempts that fail are repeated. A peer
// that no rail reaches within DMLCOMM_PEER_TIMEOUT_S, or whose process refuses, has failed: the
// link reports that.
//
// It owns no link. All calls require the progress lock.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "transport/admission.h"
#include "transport/link.h"
#include "transport/transport.h"

namespace dmlcomm::transport {

// Number of connections over a rail that stands in for the one that leads to a peer: they choose
// among equal paths by their ports. With one connection, all detours of a host of bcube:3,2 often
// led through one neighbour, and 12.5 MB took 1.12 to 1.18 times its bound, not 1.04 to 1.12.
constexpr size_t kDetourLanes = 4;

// One way to one peer.
struct Connection {
  bool attempted = false;  // a handshake of ours is under way
  bool was_up = false;
  bool failed = false;      // the last attempt
  bool is_watched = false;  // it is up, and only the event loop sees its bytes
  int64_t retry_at_ns = 0;  // 0: not planned
  int64_t wait_ns = 0;      // before the last attempt
};

struct Peer {
  Transport* transport = nullptr;
  RailCounters* counters = nullptr;     // one per rail
  RailMeter* meters = nullptr;          // one per rail; null on the own host
  std::unique_ptr<Link> link;           // once anything was asked of it
  std::vector<Connection> connections;  // by lane; lane i is on rail i modulo the rails
  int64_t connecting_since_ns = 0;
  bool has_lane_too_many = false;  // and that was told
  Status last_failure;             // of an attempt, while the link has never been up
};

class RailRepair final : public Admission::Owner {
 public:
  // `peers` by rank; `make_link` adds the link to one that has connected by itself.
  RailRepair(const Job& job, EventLoop& loop, Admission& admission, std::vector<Peer>& peers,
             std::function<void(int peer)> make_link);

  // How a link to `peer` has to be made.
  LinkOptions link_options(int peer) const;
  // Begins to connect a link that is new. A failure is reported by the link.
  void connect(int peer);
  // The same where both ranks ask for the link at about the same time: one of the two connects, and
  // the other one only if nothing comes.
  void connect_from_one_side(int peer);
  // Repairs a lane that was lost; the engine knows of the loss.
  void lane_lost(int peer, size_t lane);
  // Connects a lane that is of use from now on.
  void lane_wanted(int peer, size_t lane);
  // The rail has lost its carrier, or has it back.
  void rail_changed(const Transport& transport, Transport::RailChange change);
  // To peers that are not connected: this process was stopped for so long.
  void give_more_time(int64_t ns);
  // Makes the attempts that are due.
  void tick(int64_t now);
  // Whether connections are up that only the event loop watches.
  bool has_watched() const { return num_watched_ > 0; }

 private:
  Answer answer(const Handshake& handshake) override;
  void admitted(Handshake& handshake) override;
  void yielded(int peer, size_t lane) override;
  void failed(int peer, size_t lane, const Status& status, bool refused) override;

  size_t num_rails(int peer) const;
  uint8_t first_rail(int peer) const;
  bool is_used(int peer, size_t lane) const;
  void connect_lane(int peer, size_t lane);
  void connect_missing(int peer, bool again);
  bool all_have_failed(int peer) const;
  double time_left_s(int peer) const;
  void give_up(int peer);

  const Job& job_;
  EventLoop& loop_;
  Admission& admission_;
  std::vector<Peer>& peers_;
  const std::function<void(int)> make_link_;
  const uint32_t source_;  // of channels' events
  int num_watched_ = 0;
  uint64_t num_connects_ = 0;
};

}  // namespace dmlcomm::transport
