// Mesh: the links from this rank to all others. It is put together from
//   transports   (transport.h)    carry bytes; the first one that reaches a peer is taken
//   EventLoop    (event_loop.h)   waits
//   Admission    (admission.h)    lets connections in that know the job's secret
//   RailRepair   (rail_repair.h)  makes connections, and replaces lost ones
// and notices itself which peers ended or fell silent.
//
// All methods require the progress lock, except wake(), which any thread may call.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "transport/admission.h"
#include "transport/event_loop.h"
#include "transport/link.h"
#include "transport/rail_repair.h"
#include "transport/transport.h"

namespace dmlcomm::transport {

class Mesh {
 public:
  // Reads the addresses of all ranks; blocks until all have published theirs.
  static Result<std::unique_ptr<Mesh>> create(const MeshOptions& options, Rendezvous& rendezvous);
  ~Mesh();
  Mesh(const Mesh&) = delete;
  Mesh& operator=(const Mesh&) = delete;

  // The link to `peer`; the first call begins to connect. LinkEvents::on_failed() reports failures.
  Link& link(int peer);
  // Begins to connect where all ranks call this at about the same time, for all others.
  void connect_all();
  // The link if it has been made, or null.
  Link* existing_link(int peer) { return peers_[peer].link.get(); }

  const Job& job() const { return job_; }
  int rank() const { return job_.rank; }
  int num_ranks() const { return job_.num_ranks; }
  // Number of ranks, this one included, that share areas of memory.
  int num_sharing() const { return num_sharing_; }
  bool all_share_memory() const { return num_sharing_ == job_.num_ranks; }
  // See Transport::shared_area().
  std::byte* shared_area(int rank) const;
  // After fail_all(): see Link::has_writer().
  bool has_writer() const;
  // Wakes a peer that shares memory if it sleeps.
  void notify(int peer);

  // Looks at every link and, if `look_at_sockets`, at the kernel's events. True if anything moved.
  bool poll(bool look_at_sockets);
  // After messages have been given to links: writes those that were held back to leave together.
  void flush_deferred();
  // Whether some links can be read only after events of their sockets.
  bool has_socket_links() const { return repair_.has_watched() || admission_.is_busy(); }

  // Sleeps until an event, wake(), or `timeout_ms`; see EventLoop.
  void sleep(int timeout_ms, const std::function<bool()>& has_news);
  // Frames wait for room in a channel, or for a connection.
  bool wants_to_write() const;
  void wake() { loop_.wake(); }

  // Heartbeats, receipts that nobody waits for, and the search for silent peers; at least every
  // tick_ms(). `waits_for` says whether the engine needs the peer now besides the link's own
  // requests.
  void tick(const std::function<bool(int peer)>& waits_for);
  int tick_ms() const { return tick_ms_; }

  // Tells all peers why the communicator failed, and ends all links: no request is touched again.
  void fail_all(const Status& reason);
  // Waits until the peers have what was sent, for as long as they take it, says goodbye to all and
  // closes everything.
  void close();

  std::string description() const;
  // How long ago the peer has shown life last, or was first needed. Any thread may ask.
  double silent_s(int peer) const;
  // One per rail, and one for the peers of this host.
  std::vector<RailCounters> counters() const;

  // Reads what the connections to other hosts have carried since the last call, in operations that
  // ran for `active_ns`; see RailMeter::end_period().
  void measure_rails(int64_t active_ns, double latency_s, RailMeter::Traffic traffic);
  // Large messages to other hosts take this share of the rails' measured rates at most, and leave
  // the rest to small ones; 1: all that they get.
  void share_rails(double share);
  // Large messages to other hosts leave little below their queue from now on: see
  // Lane::limit_credit().
  void limit_credit();
  const std::vector<RailMeter>& meters() const { return meters_; }  // one per rail

 private:
  explicit Mesh(const MeshOptions& options);

  Status meet(Rendezvous& rendezvous);
  Status read_hosts(Rendezvous& rendezvous);
  Status choose_transports(Rendezvous& rendezvous);
  void make_link(int peer);
  bool may_connect() const { return end_reason_.ok() && drop_reason_.empty(); }
  void look_at_seat();
  void check_rails(int64_t now, bool paused);
  void check_life(Link& link, int64_t now, bool paused, const std::function<bool(int)>& waits_for);
  void deliver();
  int64_t patience_ns() const;
  bool has_bytes_on_the_way() const;
  void poll_while(const std::function<bool()>& is_busy, double timeout_s);

  Job job_;  // constant after create()
  const int heartbeat_ms_;
  const int tick_ms_;
  int num_sharing_ = 0;
  EventLoop loop_;
  std::vector<std::unique_ptr<Transport>> transports_;
  std::vector<Transport*> polled_;  // of these
  std::vector<RailCounters> counters_;
  std::vector<RailMeter> meters_;
  std::vector<Peer> peers_;  // by rank
  RailRepair repair_;
  Admission admission_;

  std::vector<Link*> active_;  // links that exist, for polling
  std::vector<int64_t> last_life_ns_;
  std::vector<std::atomic<int64_t>> heard_ns_;  // the same, also after a pause of this process
  double share_ = 1;                            // of the rails, for large messages
  bool was_shared_ = false;                     // since the last measurement
  bool limits_credit_ = false;
  uint32_t class_mark_ = 0;  // see SeatPage; the last that links were told
  std::string drop_reason_;  // why the job has lost its seat; empty while it has it
  Status end_reason_;        // of fail_all()
  int64_t last_tick_ns_ = 0;
  int64_t next_heartbeat_ns_ = 0;
  bool closed_ = false;
};

}  // namespace dmlcomm::transport
