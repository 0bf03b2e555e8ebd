// Segment: the piece of shared memory that each rank offers to the other ranks of its host.
//
// It is an anonymous memfd: it has no name in the file system, and the kernel frees it when the
// last process that maps it is gone, however that one ended. Its owner creates it, peers receive
// the descriptor through a Unix socket.
//
// Layout: Header | one RingControl per local rank | area | one ring per local rank.
// Ring i carries bytes from the owner to local rank i. The area is the communicator's: it begins at
// a page, and holds zeros until its owner writes there.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "base/alignment.h"
#include "base/status.h"
#include "base/unique_fd.h"

namespace dmlcomm::transport::shm {

// Bytes in flight from one rank to another. Large messages do not pass through it where the kernel
// lets the receiver read the sender's memory; without that 256 KiB keep both sides busy from L2.
constexpr size_t kRingBytes = 256 * 1024;

// Written by the owner only, read by the peers.
struct Header {
  uint64_t magic;
  uint32_t num_local;
  uint32_t rank;
  uint64_t area_bytes;
  // Of the owner's arena, whose descriptor comes with the segment's (0: there is none).
  uint64_t arena_address;
  uint64_t arena_bytes;

  // 1 while the owner sleeps or is about to; a peer that changes its condition then wakes it.
  alignas(kCacheLineBytes) std::atomic<uint32_t> sleeping;
  // Grows while the owner is alive.
  alignas(kCacheLineBytes) std::atomic<uint64_t> heartbeat;
  // Rank + 1 of whose memory the owner may be writing to, 0: nobody's. It sets this, then looks
  // whether the other still accepts that; who gives up says so, then waits until nobody writes.
  alignas(kCacheLineBytes) std::atomic<uint32_t> writing_to;
};

// Positions only grow; the index in the ring is position % kRingBytes.
struct RingControl {
  alignas(kCacheLineBytes) std::atomic<uint64_t> head;  // written up to here; by the owner
  alignas(kCacheLineBytes) std::atomic<uint64_t> tail;  // read up to here; by the peer
  // 1: the owner of the segment has read the peer's memory by itself, and offers are welcome.
  alignas(kCacheLineBytes) std::atomic<uint32_t> owner_can_read;
  // 1: the owner has revoked all its offers.
  std::atomic<uint32_t> owner_revoked;
  // Claims on chunks of the message that the owner sends (cooperative_copy.h); written by both.
  alignas(kCacheLineBytes) std::atomic<uint64_t> claims;
};

// Waits until `writer` does not write to the memory of `rank`: far longer than a chunk takes, also
// where that process has to wait for its core. False if it has been stopped.
bool wait_for_writer(const Header& writer, uint32_t rank);

class Segment {
 public:
  // The owner's segment, zeroed; memory is taken when first touched.
  static Result<std::unique_ptr<Segment>> create(uint32_t rank, uint32_t num_local,
                                                 size_t area_bytes);
  // A peer's segment; fails if it is not what `rank`, `num_local` and `area_bytes` say.
  static Result<std::unique_ptr<Segment>> map(UniqueFd fd, uint32_t rank, uint32_t num_local,
                                              size_t area_bytes);
  ~Segment();
  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;

  // Of the owner's segment. A peer's is mapped and needs none.
  int fd() const { return fd_.get(); }
  Header& header() { return *reinterpret_cast<Header*>(base_); }
  RingControl& ring_control(uint32_t local_index);
  std::byte* ring(uint32_t local_index);
  std::byte* area();
  size_t area_bytes() const { return area_bytes_; }

 private:
  Segment(UniqueFd fd, std::byte* base, size_t bytes, uint32_t num_local, size_t area_bytes);

  const UniqueFd fd_;
  std::byte* const base_;
  const size_t bytes_;
  const uint32_t num_local_;
  const size_t area_bytes_;
};

}  // namespace dmlcomm::transport::shm
