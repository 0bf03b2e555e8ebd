// Mesh: the links from this rank to all others, and the one place that waits for events.
//
// It publishes where this rank listens, connects to a peer when that is first needed (any side may
// begin; where both do, the higher rank's connection wins), admits connections that know the job's
// secret, and notices peers that ended or fell silent. Where there are several rails it notices
// that one died, and brings it back.
//
// All methods come with the progress lock held, except wake(), which any thread may call.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/config.h"
#include "base/unique_fd.h"
#include "memory/shared_arena.h"
#include "transport/address.h"
#include "transport/handshake.h"
#include "transport/link.h"
#include "transport/shm/shm_channel.h"
#include "transport/tcp/socket.h"

namespace dmlcomm::transport {

// Publishes and reads text under keys; engine::Rendezvous without the engine.
struct Directory {
  std::function<Status(const std::string& key, const std::string& value)> set;
  std::function<Result<std::string>(const std::string& key)> get;
};

// An interface of this host that may carry data between hosts.
struct LocalRail {
  std::string interface;
  std::string address;
};

struct MeshOptions {
  int rank = 0;
  int num_ranks = 1;
  std::vector<LocalRail> rails;
  // By peer: the rail that leads there directly, or kAnyRail. Empty: kAnyRail for all. The other
  // rails are connected when that one fails, each by several lanes.
  std::vector<uint8_t> first_rail;
  Config config;
  size_t shared_area_bytes = 0;
  LinkEvents* events = nullptr;
};

class Mesh {
 public:
  // Reads the addresses of all ranks; blocks until all have published theirs.
  static Result<std::unique_ptr<Mesh>> create(const MeshOptions& options,
                                              const Directory& directory);
  ~Mesh();
  Mesh(const Mesh&) = delete;
  Mesh& operator=(const Mesh&) = delete;

  // Begins to connect unless that has happened. A failure is reported by LinkEvents::on_failed().
  Link& link(int peer);
  // The link if anything was ever asked of it, or null.
  Link* existing_link(int peer) { return links_[peer].get(); }

  int rank() const { return options_.rank; }
  int num_ranks() const { return options_.num_ranks; }
  const HostAddress& host(int peer) const { return hosts_[peer]; }
  const std::vector<HostAddress>& hosts() const { return hosts_; }  // by rank
  // Whether messages to `peer` go through shared memory.
  bool shares_memory(int peer) const { return local_index_[peer] >= 0; }
  bool all_share_memory() const { return num_local_ == options_.num_ranks; }
  int num_local() const { return num_local_; }
  // After fail_all(): see Link::has_writer().
  bool has_writer() const;
  int num_ranks_on_host() const;
  int num_ranks_on_machine() const;  // hosts of one kernel together

  // Memory that `rank`, this one or a local peer, shares with the others of its host: zeros at
  // first, for the engine to lay out, and there until the mesh is destroyed. Null for a peer whose
  // link is not up.
  std::byte* shared_area(int rank) const { return areas_[rank]; }
  // Wakes a local peer if it sleeps.
  void notify(int peer);

  // Looks at every link and, if `look_at_sockets`, at the kernel's events. True if anything moved.
  bool poll(bool look_at_sockets);
  // After messages have been given to links: writes those that have waited for each other.
  void flush_deferred();
  // Whether links exist whose news come through sockets only.
  bool has_socket_links() const { return num_socket_lanes_ > 0 || !handshakes_.empty(); }

  // Sleeps until an event, wake(), or `timeout_ms`. `has_news` is asked after everybody can see
  // that we sleep; true cancels it.
  void sleep(int timeout_ms, const std::function<bool()>& has_news);
  void wake();

  // Heartbeats, receipts that nobody waits for, and the search for silent peers; at least every
  // tick_ms(). `waits_for` says whether the engine needs the peer now besides the link's own
  // requests.
  void tick(const std::function<bool(int peer)>& waits_for);
  int tick_ms() const { return tick_ms_; }

  // Tells all peers why the communicator failed, and ends all links: no request is touched again.
  void fail_all(const Status& reason);
  // Says goodbye to all peers and closes everything; gives bytes on their way a moment to leave.
  void close();

  std::string description() const;
  // One per rail, and one for the peers of this host.
  std::vector<RailCounters> counters() const;

 private:
  explicit Mesh(const MeshOptions& options);

  Status meet(const Directory& directory);
  Status read_hosts(const Directory& directory);
  Status open_local();
  Status listen_on_rails();
  Status open_network(const Directory& directory);
  Status watch(int fd, uint64_t what, bool edge);
  bool same_host(int peer) const;
  tcp::SocketOptions socket_options() const {
    return {options_.config.tcp_buffer_bytes, options_.config.tcp_congestion};
  }
  size_t num_rails_to(int peer) const;
  size_t num_lanes_to(int peer) const;
  size_t rail_of(int peer, size_t lane) const;
  bool is_connected_by(int peer, size_t lane) const;
  bool all_have_failed(int peer) const;
  void make_link(int peer);
  void connect(int peer);
  void connect_all(int peer);
  void connect_local(int peer);
  void connect_lane(int peer, size_t lane);
  void connect_untried(int peer);
  void connect_failed(int peer, size_t lane, const Status& status, bool refused);
  static std::string advise(const std::string& problem);
  void lane_lost(int peer, size_t lane);
  void check_rails(int64_t now, bool paused);
  void check_carriers();
  void retry_now(int peer, size_t lane);
  void accept_all(int listener, bool local);
  void add_handshake(std::unique_ptr<Handshake> handshake);
  void advance_handshake(uint64_t id);
  void handshake_failed(std::unique_ptr<Handshake> handshake, const Status& status);
  void handshake_complete(std::unique_ptr<Handshake> handshake);
  bool welcome(Handshake& handshake);
  void attach(Handshake& handshake);
  void limit_queue(int fd, const Link& link, bool is_local);
  void attach_local(Handshake& handshake, int peer);
  Hello own_hello(uint8_t kind, size_t lane, uint64_t connection) const;
  std::vector<int> own_fds(const Handshake& handshake) const;
  void drop_handshakes_to(int peer, size_t lane);
  void expire_handshakes();
  void on_event(uint64_t what, uint32_t events);
  void retry_connects();
  void retry_local(int peer, int64_t now);
  void poll_while(const std::function<bool(Link*)>& busy, double timeout_s);

  // What an epoll event is about: a kind in the upper half, its number in the lower; of a link,
  // its lane above the peer.
  static constexpr uint64_t kDoorbell = 1ull << 32;
  static constexpr uint64_t kUnixListener = 2ull << 32;
  static constexpr uint64_t kTcpListener = 3ull << 32;
  static constexpr uint64_t kLink = 4ull << 32;
  static constexpr uint64_t kHandshake = 5ull << 32;
  static constexpr uint64_t kNumberMask = 0xffffffffu;
  static constexpr int kLaneShift = 24;
  static constexpr uint32_t kPeerMask = (1u << kLaneShift) - 1;

  // One way to one peer.
  struct Connection {
    bool attempted = false;  // a handshake of ours is under way
    bool was_up = false;
    bool failed = false;      // the last attempt
    int64_t retry_at_ns = 0;  // 0: not planned
    int64_t wait_ns = 0;      // before the last attempt
    uint64_t number = 0;      // of our attempt
  };

  // Constant after create().
  const MeshOptions options_;
  const int heartbeat_ms_;
  const int tick_ms_;
  const uint64_t nonce_;
  JobKey key_;
  std::vector<HostAddress> hosts_;
  std::vector<std::vector<RailEndpoint>> endpoints_;  // of remote peers
  std::vector<int> local_index_;                      // per rank; -1: not on this host
  int num_local_ = 0;
  std::vector<RailEndpoint> own_endpoints_;
  UniqueFd epoll_;
  UniqueFd doorbell_;
  UniqueFd unix_listener_;
  std::vector<tcp::Listener> listeners_;
  // Peers that share memory get both.
  std::shared_ptr<shm::Segment> segment_;
  SharedArena* const arena_ = SharedArena::existing();

  std::vector<std::unique_ptr<Link>> links_;
  std::vector<Link*> active_;  // links that exist, for polling
  std::vector<std::shared_ptr<shm::Segment>> peer_segments_;
  std::vector<std::byte*> areas_;  // by rank
  std::vector<int64_t> last_life_ns_;
  std::vector<std::vector<Connection>> connections_;  // by peer and lane
  std::vector<int64_t> connecting_since_ns_;
  std::vector<bool> has_carrier_;       // of the own rails
  std::vector<RailCounters> counters_;  // of the own rails
  RailCounters local_counters_{.interface = "local"};
  std::map<uint64_t, std::unique_ptr<Handshake>> handshakes_;
  uint64_t next_handshake_ = 0;
  int num_socket_lanes_ = 0;
  uint64_t num_connects_ = 0;
  Status end_reason_;  // of fail_all()
  int64_t last_tick_ns_ = 0;
  int64_t next_heartbeat_ns_ = 0;
  bool closed_ = false;
};

}  // namespace dmlcomm::transport
