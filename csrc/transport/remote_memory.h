// RemoteMemory: reading and writing the memory of one peer without its help. A channel has one only
// if its transport can do that (Channel::memory()).
//
// How a message is offered: the sender asks key_for() and sends address and key (in the frame
// `offer`; the address is its `offset`, a key other than 0 its payload). The receiver reads, any
// number of times, and acknowledges. Then the memory is the sender's again.
//
// Reads and writes end at once or later. In the second case they set `access` to `pending`, and a
// later call of the transport sets it to the result; until then `access` and the local memory stay
// in place. An error of a pending access ends the channel: its next read() returns it. With joint
// memory or a shared area, all accesses end at once.
//
// The thread that calls the channel calls this object, which the channel owns.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>

#include "base/status.h"

namespace dmlcomm::transport {

// Memory of another process. Only the transport knows the meaning of `key`.
struct RemoteAddress {
  uint64_t address = 0;
  uint64_t key = 0;

  RemoteAddress operator+(size_t bytes) const { return {address + bytes, key}; }
};

// The state of a read or write. `revoked`: the peer had revoked the memory, and the bytes that
// were read may be anything.
enum class Access : uint8_t { idle, pending, done, revoked };

// Words in shared memory, through which two ends that reach each other's memory divide the chunks
// of a copy (cooperative_copy.h).
struct CooperativeMemory {
  // Claims on the chunks of the incoming message, and of the outgoing one.
  std::atomic<uint64_t>& incoming;
  std::atomic<uint64_t>& outgoing;
  // Marks the rank whose memory we are writing to, and the peer's mark in such a word.
  std::atomic<uint32_t>& own_writing_to;
  const uint32_t peer_mark;
  // Waits until the peer is not writing to our memory, or is dead, and returns true. False: it is
  // still writing, and must have been stopped, since it has made no progress for long.
  const std::function<bool()> wait_for_peers_write;
};

// While it exists the peer can see that we may write to its memory. Sequentially consistent, as our
// test whether the peer still accepts writes: either we see that it has given up, or it sees that
// we write, and waits.
class WriteGuard {
 public:
  explicit WriteGuard(CooperativeMemory& memory) : writing_to_(memory.own_writing_to) {
    writing_to_.store(memory.peer_mark);
  }
  ~WriteGuard() { writing_to_.store(0); }
  WriteGuard(const WriteGuard&) = delete;
  WriteGuard& operator=(const WriteGuard&) = delete;

 private:
  std::atomic<uint32_t>& writing_to_;
};

class RemoteMemory {
 public:
  virtual ~RemoteMemory() = default;

  // Whether the peer can read our memory (then messages are offered), and we the peer's.
  virtual bool peer_reaches_us() const = 0;
  virtual bool reaches_peer() const = 0;

  // The key that the peer needs beside the address to reach this memory of ours.
  virtual uint64_t key_for(const void* /*data*/, size_t /*bytes*/) { return 0; }

  // Only if reaches_peer().
  virtual Status read(RemoteAddress from, void* to, size_t bytes, Access* access) = 0;
  virtual Status write(RemoteAddress to, const void* from, size_t bytes, Access* access) = 0;
  // The local mapping of `bytes` of the peer's memory; null without one.
  virtual std::byte* mapped(RemoteAddress, size_t /*bytes*/) const { return nullptr; }

  // From now on the peer's reads do not return the offered bytes. Pending accesses of ours stay so
  // for ever, and touch no memory any more.
  virtual void revoke() = 0;

  // Null unless both ends reach each other's memory, and share words.
  virtual CooperativeMemory* cooperative() { return nullptr; }
};

}  // namespace dmlcomm::transport
