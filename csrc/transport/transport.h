// Transport: one way to carry bytes to other ranks: shared memory, TCP, UCX. The layers above know
// only this file, channel.h and remote_memory.h.
//
// A transport provides
//  - addresses: meet() publishes where this rank listens, and reads the same of its peers;
//  - a connector: connect() begins a connection to a peer, over one rail of several;
//  - a byte stream: open() makes a Channel of a connection that has been admitted. Its queues are
//    bounded: write() takes as many bytes as fit. With it, optionally, RemoteMemory;
//  - readiness: the channel's descriptor, or the doorbell of the event loop, or poll() and arm();
//  - optionally memory that is shared with all its peers.
//
// A transport does not shake hands. Admission does that, in the same way for all transports: over
// the socket of connect() or of a listener, with hello frames, and with descriptors beside them if
// it is a Unix socket. A transport whose data does not use that socket keeps it in its channel: the
// end of the socket tells that the peer's process is gone.
//
// If peers need a key for its memory, RemoteMemory::key_for() returns it, and the offer carries it.
// The transport itself exchanges keys longer than 8 bytes, once per registered memory region, and
// key_for() names them.
//
// All calls require the progress lock.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "base/config.h"
#include "base/unique_fd.h"
#include "transport/address.h"
#include "transport/channel.h"
#include "transport/handshake.h"
#include "transport/job_seat.h"
#include "transport/relaying.h"
#include "transport/rendezvous.h"
#include "transport/request.h"

namespace dmlcomm::transport {

class Admission;
class EventLoop;

struct MeshOptions {
  int rank = 0;
  int num_ranks = 1;
  std::vector<RailAddress> rails;
  std::vector<uint64_t> rail_rates_bps;  // see CommunicatorOptions
  Relaying relaying = Relaying::none;
  std::vector<int> global_ranks;  // by rank: in the job; empty: the same
  // Of the whole job: sizes of the levels, level l on rail l, and each rank's host; empty where
  // there is no grid.
  std::vector<uint32_t> grid;
  std::vector<uint32_t> host_of_rank;
  // By peer: the rail that leads there directly, or kAnyRail. Empty: kAnyRail for all. The other
  // rails are connected when that one fails, each by several lanes.
  std::vector<uint8_t> first_rail;
  bool reads_alone = false;              // see LinkOptions
  bool queues_little = false;            // see CommunicatorOptions
  bool tunes = true;                     // this rank's choices may follow what ranks measure
  std::chrono::milliseconds timeout{0};  // of the rendezvous
  Config config;
  size_t shared_area_bytes = 0;
  LinkEvents* events = nullptr;
  std::shared_ptr<JobSeat> seat;  // at the arbiter of this host; null: there is none
};

// A rank's knowledge of its communicator once the ranks have met; constant from then on.
struct Job : MeshOptions {
  JobKey key;
  std::vector<HostAddress> hosts;  // by rank

  const HostAddress& own_host() const { return hosts[rank]; }
  bool same_host(int peer) const { return hosts[peer].host_id == own_host().host_id; }
  int num_ranks_on_host() const;
  int num_ranks_on_machine() const;  // hosts of one kernel together
  bool all_tune() const;             // see MeshOptions
  bool all_probe() const;            // see Config
};

class Transport {
 public:
  virtual ~Transport() = default;

  // Whether it carries messages to `peer`; asked once all hosts are known. The first transport that
  // reaches the peer is taken.
  virtual bool reaches(int peer) const = 0;

  // Listens for peers that need only the HostAddress, before that is published.
  virtual Status listen(Admission&) { return Status(); }
  // Listens, publishes its addresses, and waits until all ranks have done so. Reads those of
  // `peers`. Either all ranks of a job call it, or none.
  virtual Status meet(const std::vector<int>& peers, Rendezvous& rendezvous,
                      Admission& admission) = 0;
  // Prepares a connection that a listener has accepted; false drops it.
  virtual bool accepts(int fd) = 0;

  // Rails to `peer`: the number of connections that can carry different messages at the same time.
  virtual size_t num_rails(int peer) const = 0;
  // Begins a connection for a lane, which is on rail `lane` modulo num_rails(); `peer_lost` if
  // nobody listens there. It is complete when it is writable, and relays, if there are any on the
  // way, have answered.
  virtual Result<Attempt> connect(int peer, size_t lane) = 0;
  // The last attempt for the lane came to nothing; `refused`: nobody listened at its end. True if
  // connect() has another way there, which is worth an attempt at once. If not, `refused` says
  // whether it is the peer that has refused.
  virtual bool has_other_way(int /*peer*/, size_t /*lane*/, bool* /*refused*/) { return false; }
  // "connect from ... to ...", for errors: the way of the next attempt, or of the one under way.
  virtual std::string route(int peer, size_t lane) = 0;
  // All links have ended: releases what is of use to others, after a moment for what is under way.
  virtual void close() {}
  // Advice for an error; begins with a semicolon unless empty.
  virtual std::string advice() const { return ""; }
  // Descriptors that the hello carries.
  virtual std::vector<int> descriptors() const { return {}; }
  // The hello has come: takes the socket and its descriptors out of `handshake`. `is_alone`: it
  // carries all messages to the peer but urgent ones.
  virtual Result<std::unique_ptr<Channel>> open(int peer, size_t rail, bool is_alone,
                                                Handshake& handshake) = 0;

  // The rails of this rank that have come or gone since the last call.
  struct RailChange {
    size_t rail;
    bool is_up;
  };
  virtual std::vector<RailChange> changed_rails() { return {}; }

  // For a transport that has to be driven: poll() is called in every Mesh::poll(), and arm() before
  // the event loop sleeps. It is false if there is news; if not, a descriptor that the transport
  // has given to the loop wakes it. needs_poll() is asked once.
  virtual bool needs_poll() const { return false; }
  virtual void poll() {}
  virtual bool arm() { return true; }

  // A sign of life for the peers that watch our memory; every tick.
  virtual void show_life() {}
  // Memory of `rank`, this one or a peer, that all ranks of this transport share: zeros at first,
  // MeshOptions::shared_area_bytes long, valid as long as the transport. Null until a connection is
  // open, and without shared areas.
  virtual std::byte* shared_area(int /*rank*/) const { return nullptr; }
  virtual bool has_shared_areas() const { return false; }
  // ", eth0 10.0.0.1:4711", for the log.
  virtual std::string description() const { return ""; }
};

// All transports that the configuration allows, the best first. `loop` outlives them.
std::vector<std::unique_ptr<Transport>> make_transports(const Job& job, EventLoop& loop);

}  // namespace dmlcomm::transport
