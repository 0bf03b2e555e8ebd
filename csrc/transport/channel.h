// Channel: one ordered, reliable pipe of bytes to one peer. A TCP connection, or a ring in shared
// memory. What the bytes mean is Link's business.
//
// Calls come from one thread at a time (the holder of the communicator's progress lock). Nothing
// blocks. After an error every call returns an error. Destroying the channel closes it.
#pragma once

#include <sys/uio.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

#include "base/status.h"

namespace dmlcomm::transport {

// Words in shared memory, through which two ends that reach each other's memory agree who copies
// what (joint_copy.h).
struct JointMemory {
  // Claims on the chunks of the message that comes in, and of the one that goes out.
  std::atomic<uint64_t>& incoming;
  std::atomic<uint64_t>& outgoing;
  // Whose memory we are writing to, and how the peer is called there.
  std::atomic<uint32_t>& own_writing_to;
  const uint32_t peer_mark;
  // Returns when the peer is not writing to our memory, or not alive: true. False: it is, and has
  // made no progress for so long that it must have been stopped.
  const std::function<bool()> wait_for_peers_write;
};

class Channel {
 public:
  virtual ~Channel() = default;

  // Takes as many bytes as fit now, possibly none. The memory is free again on return.
  virtual Result<size_t> write(const iovec* parts, int num_parts) = 0;

  // Hands out as many bytes as are there, possibly none. The end of the stream is `peer_lost`.
  virtual Result<size_t> read(const iovec* parts, int num_parts) = 0;

  // A cheap look whether read() may return something. What comes to a channel that is watched by
  // epoll after its last bytes were read is not seen before descriptor_ready().
  virtual bool maybe_readable() const = 0;

  // A cheap look whether write() may take something.
  virtual bool maybe_writable() const { return true; }

  // Bytes that are on their way and not confirmed by the other end's kernel, and how many have been
  // confirmed in all. Nothing on its way where only the process itself can tell.
  struct Confirmed {
    bool some_on_the_way = false;
    uint64_t bytes = 0;
  };
  virtual Confirmed confirmed() const { return {}; }

  // Whether the peer can reach our memory by itself (then offers are sent), and we the peer's.
  virtual bool peer_can_pull() const { return false; }
  virtual bool can_pull() const { return false; }

  // Copies `bytes` from, or to, the peer's memory at `address`; only if can_pull(). Pulling gives
  // false where the peer has withdrawn: then the bytes may be anything, or not there.
  virtual Result<bool> pull(uint64_t address, void* destination, size_t bytes);
  virtual Status push(uint64_t address, const void* source, size_t bytes);
  // Where `bytes` at `address` of the peer's memory are in ours; null if they are not.
  virtual std::byte* mapped(uint64_t address, size_t bytes) const;
  // What the peer pulls from now on is not what was offered.
  virtual void withdraw() {}

  // Null where not both ends reach each other's memory.
  virtual JointMemory* joint() { return nullptr; }

  // Wakes the peer if it sleeps; called after writes that it may be waiting for.
  virtual void notify() {}

  // Whether the peer's process showed life since the last call. False where only bytes that it
  // sends can tell.
  virtual bool peer_showed_life() { return false; }

  // For epoll, edge-triggered: descriptor_ready() is called with what it says.
  virtual int descriptor() const = 0;
  struct Ready {
    bool readable = false;
    bool writable = false;
    bool ended = false;  // nothing more will come than what is there
  };
  virtual void descriptor_ready(Ready ready) = 0;

  // Whether silence can only be told from death by heartbeat frames.
  virtual bool needs_heartbeats() const { return true; }

  // Ends our side in good order, once everything written is on its way.
  virtual void shut_down() {}

  // "tcp 10.0.0.1:4711 -> 10.0.0.2:1234 (eth0)" or "shm".
  virtual std::string description() const = 0;
};

inline Result<bool> Channel::pull(uint64_t, void*, size_t) {
  return Status(StatusCode::unsupported, "this channel cannot read the peer's memory");
}

inline std::byte* Channel::mapped(uint64_t, size_t) const { return nullptr; }

inline Status Channel::push(uint64_t, const void*, size_t) {
  return Status(StatusCode::unsupported, "this channel cannot write the peer's memory");
}

}  // namespace dmlcomm::transport
