// Channel: one ordered, reliable pipe of bytes to one peer. A TCP connection, or a ring in shared
// memory. What the bytes mean is Link's business.
//
// Calls come from one thread at a time (the holder of the communicator's progress lock). Nothing
// blocks. After an error every call returns an error. Destroying the channel closes it.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <string>

#include "base/status.h"
#include "transport/remote_memory.h"

namespace dmlcomm::transport {

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

  // Null where neither end reaches the other's memory.
  RemoteMemory* memory() const { return memory_; }

  // Wakes the peer if it sleeps; called after writes that it may be waiting for.
  virtual void notify() {}

  // Whether the peer's process showed life since the last call. False where only bytes that it
  // sends can tell.
  virtual bool peer_showed_life() { return false; }

  // For epoll, edge-triggered: descriptor_ready() is called with what it says. -1: there is none.
  virtual int descriptor() const = 0;
  struct Ready {
    bool readable = false;
    bool writable = false;
    bool ended = false;  // nothing more will come than what is there
  };
  virtual void descriptor_ready(Ready ready) = 0;

  // Whether the event loop alone sees what comes. Else maybe_readable() does at any time, and the
  // peer rings our doorbell, or the transport is polled.
  virtual bool needs_epoll() const { return true; }

  // Whether silence can only be told from death by heartbeat frames.
  virtual bool needs_heartbeats() const { return true; }

  // Ends our side in good order, once everything written is on its way.
  virtual void shut_down() {}

  // "tcp 10.0.0.1:4711 -> 10.0.0.2:1234 (eth0)" or "shm".
  virtual std::string description() const = 0;

 protected:
  explicit Channel(RemoteMemory* memory = nullptr) : memory_(memory) {}

 private:
  RemoteMemory* const memory_;
};

}  // namespace dmlcomm::transport
