// Channel: one ordered, reliable pipe of bytes to one peer. A TCP connection, or a ring in shared
// memory. Link interprets the bytes.
//
// One thread at a time calls it (the holder of the communicator's progress lock). Nothing but
// let_go() blocks. After an error every call returns an error. Destroying the channel closes it.
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

  // Takes as many bytes as fit now, possibly none. The memory of these is free again on return. Of
  // the rest it may begin to send the first ones: the next call has the same bytes first, and their
  // memory stays until a call has returned them as taken, or until let_go().
  virtual Result<size_t> write(const iovec* parts, int num_parts) = 0;

  // The bytes of the next writes have this ticket, from 0 on. A channel through switches may show
  // it to them.
  virtual void set_ticket(uint8_t /*ticket*/) {}
  virtual bool shows_tickets() const { return false; }
  // From now on all packets have this DSCP, whatever their tickets.
  virtual void mark_class(uint8_t /*dscp*/) {}

  // Hands out as many bytes as are there, possibly none. The end of the stream is `peer_lost`.
  virtual Result<size_t> read(const iovec* parts, int num_parts) = 0;

  // A cheap test whether read() may return bytes. If epoll watches the channel, bytes that come
  // after the last read() are not seen before descriptor_ready().
  virtual bool maybe_readable() const = 0;

  // A cheap test whether write() may take bytes.
  virtual bool maybe_writable() const { return true; }

  // What the kernel says of the way to the other end, since the connection began. All 0 if no
  // kernel confirms bytes.
  struct Flow {
    bool some_on_the_way = false;  // bytes that the other end's kernel has not confirmed
    uint64_t confirmed_bytes = 0;
    uint64_t busy_us = 0;  // while bytes were waiting or on their way
    uint64_t bytes_resent = 0;
    uint32_t min_rtt_us = 0;         // the shortest round trip of late
    uint64_t queued_bytes = 0;       // waiting or on their way now
    uint64_t most_queued_bytes = 0;  // that wait, and that are on their way, at most
    double bytes_per_second = 0;     // at which bytes were confirmed of late; 0: not known
  };
  virtual Flow flow() const { return {}; }

  // The congestion control of the kernel's connection; empty where there is none.
  virtual std::string congestion() const { return {}; }

  // From now on about so many bytes wait at most, beyond those on their way. Without effect where
  // no kernel queues them.
  virtual void limit_queue(size_t /*bytes*/) {}
  // From now on the kernel takes about so many bytes at most before they are read.
  virtual void limit_arrivals(size_t /*bytes*/) {}

  // Payloads on this channel have checksums, by both ends.
  void check_payloads() { checks_payloads_ = true; }
  bool checks_payloads() const { return checks_payloads_; }

  // Null if neither end reaches the other's memory.
  RemoteMemory* memory() const { return memory_; }

  // Wakes the peer if it sleeps; called after writes that it may be waiting for.
  virtual void notify() {}

  // Whether the peer's process showed life since the last call. False if only its bytes can tell.
  virtual bool peer_showed_life() { return false; }

  // For epoll, edge-triggered: descriptor_ready() is called with its events. -1: there is none.
  virtual int descriptor() const = 0;
  struct Ready {
    bool readable = false;
    bool writable = false;
    bool ended = false;  // no bytes follow those that are there
  };
  virtual void descriptor_ready(Ready ready) = 0;

  // Whether only the event loop sees new bytes. Otherwise maybe_readable() sees them at any time,
  // and the peer rings our doorbell, or the transport is polled.
  virtual bool needs_epoll() const { return true; }

  // Whether only heartbeat frames can tell silence from death.
  virtual bool needs_heartbeats() const { return true; }

  // Ends our side in good order, once everything written is on its way.
  virtual void shut_down() {}

  // "tcp 10.0.0.1:4711 -> 10.0.0.2:1234 (eth0)" or "shm".
  virtual std::string description() const = 0;

  // As read(), into memory that stays where it is until these bytes have come: the channel may have
  // them written there by others, until let_go(). Only where reads_in_place().
  virtual bool reads_in_place() const { return false; }
  virtual Result<size_t> read_in_place(std::byte* /*to*/, size_t /*bytes*/) { return size_t{0}; }
  // Of what write() took, what the peer fetched from the memory of the caller.
  virtual uint64_t bytes_lent() const { return 0; }
  // Memory of earlier calls is not touched after this one, which waits for that for a second at
  // most. Bytes that were to go there may be lost, and with them the channel.
  virtual void let_go() {}

  // Beside the bytes: why our side ends, before let_go(); and what the peer has said so, ok if
  // nothing. Of channels that may lose bytes on their way when they end.
  virtual void tell(const Status& /*reason*/) {}
  virtual Status told() { return Status(); }

 protected:
  explicit Channel(RemoteMemory* memory = nullptr) : memory_(memory) {}

 private:
  RemoteMemory* const memory_;
  bool checks_payloads_ = false;
};

}  // namespace dmlcomm::transport
