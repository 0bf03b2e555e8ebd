// RemoteMemory: reading and writing the memory of one peer without its help. A channel has one
// where its transport can do that (Channel::memory()), and none else.
//
// How a message is offered: the sender asks key_for() and sends address and key (in the frame
// `offer`; the address is its `offset`, a key other than 0 its payload). The receiver reads, as
// often as it likes, and acknowledges. From then on the memory is the sender's again.
//
// Reads and writes end at once or later. In the second case they set `access` to `pending`, and a
// later call of the transport sets it to how it ended; until then `access` and the memory here stay
// in place. An error of a pending access ends the channel: its next read() returns it. Where there
// is joint memory or a shared area, all accesses end at once.
//
// Calls come from the thread that calls the channel, which owns this object.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>

#include "base/status.h"

namespace dmlcomm::transport {

// Memory of another process. What `key` means is known to the transport alone.
struct RemoteAddress {
  uint64_t address = 0;
  uint64_t key = 0;

  RemoteAddress operator+(size_t bytes) const { return {address + bytes, key}; }
};

// How a read or write stands. `withdrawn`: the peer had withdrawn what was read, and the bytes may
// be anything.
enum class Access : uint8_t { idle, pending, done, withdrawn };

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

// While it lives the peer can see that we may write to its memory. Sequentially consistent, as the
// look at whether the peer still accepts that: either we see that it has given up, or it sees that
// we write, and waits.
class WriteGuard {
 public:
  explicit WriteGuard(JointMemory& memory) : writing_to_(memory.own_writing_to) {
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

  // What the peer needs beside the address to reach this memory of ours.
  virtual uint64_t key_for(const void* /*data*/, size_t /*bytes*/) { return 0; }

  // Only if reaches_peer().
  virtual Status read(RemoteAddress from, void* to, size_t bytes, Access* access) = 0;
  virtual Status write(RemoteAddress to, const void* from, size_t bytes, Access* access) = 0;
  // Where `bytes` of the peer's memory are in ours; null if they are not.
  virtual std::byte* mapped(RemoteAddress, size_t /*bytes*/) const { return nullptr; }

  // What the peer reads from now on is not what was offered. Accesses of ours that are pending stay
  // so for ever, and touch no memory any more.
  virtual void withdraw() = 0;

  // Null where not both ends reach each other's memory, or share no words.
  virtual JointMemory* joint() { return nullptr; }
};

}  // namespace dmlcomm::transport
