// ShmChannel: a channel to another rank of the same host, over two rings in shared memory.
//
// The Unix socket through which the segments were exchanged stays open: its end means that the
// peer's process is gone. If the kernel permits, each side reads the other's memory by itself
// (process_vm_readv), in one copy; memory in an arena that the peer has handed over is read without
// the kernel.
#pragma once

#include <sys/types.h>

#include <memory>

#include "base/unique_fd.h"
#include "memory/shared_arena.h"
#include "transport/channel.h"
#include "transport/shm/segment.h"

namespace dmlcomm::transport::shm {

// The knowledge of both sides after the handshake.
struct ShmPeer {
  UniqueFd socket;
  UniqueFd doorbell;  // eventfd of the peer: writing wakes it
  std::shared_ptr<Segment> segment;
  MappedArena arena;
  uint32_t local_index = 0;
  pid_t pid = 0;
  bool is_readable = false;  // its memory, by this process
};

class ShmChannel final : public Channel, private RemoteMemory {
 public:
  // `own` is this rank's segment, and `own_index` its index among the ranks of the host.
  ShmChannel(std::shared_ptr<Segment> own, uint32_t own_index, ShmPeer peer);

  Result<size_t> write(const iovec* parts, int num_parts) override;
  Result<size_t> read(const iovec* parts, int num_parts) override;
  bool maybe_readable() const override;
  void notify() override;
  bool peer_showed_life() override;
  int descriptor() const override { return peer_.socket.get(); }
  void descriptor_ready(Ready ready) override;
  bool needs_epoll() const override { return false; }
  bool needs_heartbeats() const override { return false; }
  void shut_down() override;
  std::string description() const override;

 private:
  bool peer_reaches_us() const override;
  bool reaches_peer() const override { return peer_.is_readable; }
  Status read(RemoteAddress from, void* to, size_t bytes, Access* access) override;
  Status write(RemoteAddress to, const void* from, size_t bytes, Access* access) override;
  std::byte* mapped(RemoteAddress at, size_t bytes) const override {
    return peer_.arena.find(at.address, bytes);
  }
  void revoke() override;
  CooperativeMemory* cooperative() override {
    return reaches_peer() && peer_reaches_us() ? &cooperative_ : nullptr;
  }

  Status copy_error(const char* call, size_t bytes) const;
  bool peer_revoked() const;

  const std::shared_ptr<Segment> own_;
  ShmPeer peer_;

  // Own ring to the peer, and the peer's ring to us.
  RingControl& out_control_;
  std::byte* const out_;
  RingControl& in_control_;
  const std::byte* const in_;

  CooperativeMemory cooperative_;
  uint64_t seen_heartbeat_ = 0;
  bool peer_gone_ = false;
};

}  // namespace dmlcomm::transport::shm
