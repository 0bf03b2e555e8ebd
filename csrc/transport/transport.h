// Transport: one way to carry bytes to other ranks: shared memory, TCP. What is above knows no more
// of it than this file, channel.h and remote_memory.h say.
//
// A transport provides
//  - addresses: meet() publishes where this rank listens, and reads the same of its peers;
//  - a connector: connect() begins a connection to a peer, over one rail of several;
//  - a byte stream: open() makes a Channel of a connection that has been admitted. Its queues are
//    bounded: write() takes what fits. With it, optionally, RemoteMemory;
//  - readiness: the channel's descriptor, or the doorbell of the event loop, or poll();
//  - optionally memory that is shared with all its peers.
//
// A transport does not shake hands. That is Admission's business, over the socket that connect()
// returns or a listener yields, and the same for all: hello frames, with descriptors beside them
// where the socket is a Unix one. A transport whose data takes another way keeps that socket in its
// channel: its end tells that the peer's process is gone.
//
// A transport whose peers need a key for its memory hands keys out in RemoteMemory::key_for(); they
// travel in the offer. Keys that are longer than 8 bytes are exchanged once per piece of registered
// memory, by the transport itself, and key_for() names them.
//
// All calls come with the progress lock held.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "base/config.h"
#include "base/unique_fd.h"
#include "transport/address.h"
#include "transport/channel.h"
#include "transport/rendezvous.h"
#include "transport/request.h"

namespace dmlcomm::transport {

class Admission;
class EventLoop;
class Handshake;

struct MeshOptions {
  int rank = 0;
  int num_ranks = 1;
  std::vector<RailAddress> rails;
  // By peer: the rail that leads there directly, or kAnyRail. Empty: kAnyRail for all. The other
  // rails are connected when that one fails, each by several lanes.
  std::vector<uint8_t> first_rail;
  std::chrono::milliseconds timeout{0};  // of the rendezvous
  Config config;
  size_t shared_area_bytes = 0;
  LinkEvents* events = nullptr;
};

// What a rank knows of its communicator once the ranks have met; constant from then on.
struct Job : MeshOptions {
  JobKey key;
  std::vector<HostAddress> hosts;  // by rank

  const HostAddress& own_host() const { return hosts[rank]; }
  bool same_host(int peer) const { return hosts[peer].host_id == own_host().host_id; }
  int num_ranks_on_host() const;
  int num_ranks_on_machine() const;  // hosts of one kernel together
};

class Transport {
 public:
  virtual ~Transport() = default;

  // Whether it carries what goes to `peer`; asked once all hosts are known. The first one that does
  // is taken.
  virtual bool reaches(int peer) const = 0;

  // Listens for peers that need to know no more than the HostAddress, before that is published.
  virtual Status listen(Admission&) { return Status(); }
  // Listens, publishes what the peers need, and waits until all of `peers` have done so.
  virtual Status meet(const std::vector<int>& peers, Rendezvous& rendezvous,
                      Admission& admission) = 0;
  // What a connection that a listener has accepted needs; false drops it.
  virtual bool accepts(int fd) = 0;

  // Rails to `peer`: as many as connections that may carry different messages at the same time.
  virtual size_t num_rails(int peer) const = 0;
  // Begins a connection; `peer_lost` if nobody listens there. Its writability tells the end of it.
  virtual Result<UniqueFd> connect(int peer, size_t rail) = 0;
  // "connect from ... to ...", for errors.
  virtual std::string route(int peer, size_t rail) const = 0;
  // What to try when it does not work; begins with a semicolon if there is anything.
  virtual std::string advice() const { return ""; }
  // Descriptors that the hello takes along.
  virtual std::vector<int> descriptors() const { return {}; }
  // The hello has come: takes the socket and what came with it out of `handshake`. `is_alone`: no
  // other connection leads to the peer.
  virtual Result<std::unique_ptr<Channel>> open(int peer, size_t rail, bool is_alone,
                                                Handshake& handshake) = 0;

  // The rails of this rank that have come or gone since the last call.
  struct RailChange {
    size_t rail;
    bool is_up;
  };
  virtual std::vector<RailChange> changed_rails() { return {}; }

  // Where nothing else tells of news: looks for them, in every Mesh::poll(). needs_poll() is asked
  // once; sleep of the event loop is cut to a millisecond then.
  virtual bool needs_poll() const { return false; }
  virtual void poll() {}

  // Tells the peers that watch our memory that we live; every tick.
  virtual void show_life() {}
  // Memory of `rank`, this one or a peer, that all ranks of this transport share: zeros at first,
  // MeshOptions::shared_area_bytes, there as long as the transport. Null until a connection is
  // open, and where there is none.
  virtual std::byte* shared_area(int /*rank*/) const { return nullptr; }
  virtual bool has_shared_areas() const { return false; }
  // ", eth0 10.0.0.1:4711", for the log.
  virtual std::string description() const { return ""; }
};

// All that the configuration allows, the best first. `loop` outlives them.
std::vector<std::unique_ptr<Transport>> make_transports(const Job& job, EventLoop& loop);

}  // namespace dmlcomm::transport
