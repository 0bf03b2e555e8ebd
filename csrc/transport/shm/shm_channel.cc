#include "transport/shm/shm_channel.h"

#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/str_cat.h"
#include "kernels/copy.h"
#include "transport/event_loop.h"
#include "transport/process_memory.h"

namespace dmlcomm::transport::shm {
namespace {

// From here on copies go past the cache. Messages that do not fit into it may come in parts of this
// size (chunks of cooperative_copy.cc); but so do smaller ones.
constexpr size_t kStreamBytes = 64 * 1024;

void copy_mapped(void* destination, const void* source, size_t bytes) {
  if (bytes >= kStreamBytes) {
    kernels::stream_copy(destination, source, bytes);
  } else if (bytes > 0) {
    std::memcpy(destination, source, bytes);
  }
}

}  // namespace

ShmChannel::ShmChannel(std::shared_ptr<Segment> own, uint32_t own_index, ShmPeer peer)
    : Channel(static_cast<RemoteMemory*>(this)),
      own_(std::move(own)),
      peer_(std::move(peer)),
      out_control_(own_->ring_control(peer_.local_index)),
      out_(own_->ring(peer_.local_index)),
      in_control_(peer_.segment->ring_control(own_index)),
      in_(peer_.segment->ring(own_index)),
      cooperative_{in_control_.claims, out_control_.claims, own_->header().writing_to,
                   peer_.segment->header().rank + 1, [this] {
                     return peer_gone_ ||
                            wait_for_writer(peer_.segment->header(), own_->header().rank);
                   }} {
  out_control_.owner_can_read.store(peer_.is_readable ? 1 : 0, std::memory_order_relaxed);
}

// Relaxed, and possibly late: until the peer has said so, messages take the ring.
bool ShmChannel::peer_reaches_us() const {
  return in_control_.owner_can_read.load(std::memory_order_relaxed) != 0;
}

Result<size_t> ShmChannel::write(const iovec* parts, int num_parts) {
  uint64_t head = out_control_.head.load(std::memory_order_relaxed);
  // Pairs with the release of `tail` in the peer's read(): it has copied what we overwrite.
  const uint64_t tail = out_control_.tail.load(std::memory_order_acquire);
  size_t space = kRingBytes - (head - tail);
  size_t total = 0;
  for (int i = 0; i < num_parts && space > 0; ++i) {
    const auto* from = static_cast<const std::byte*>(parts[i].iov_base);
    size_t left = std::min(parts[i].iov_len, space);
    total += left;
    space -= left;
    while (left > 0) {
      const size_t at = head % kRingBytes;
      const size_t bytes = std::min(left, kRingBytes - at);
      std::memcpy(out_ + at, from, bytes);
      from += bytes;
      head += bytes;
      left -= bytes;
    }
  }
  // Pairs with the acquire of `head` in the peer's read().
  out_control_.head.store(head, std::memory_order_release);
  return total;
}

Result<size_t> ShmChannel::read(const iovec* parts, int num_parts) {
  uint64_t tail = in_control_.tail.load(std::memory_order_relaxed);
  const uint64_t head = in_control_.head.load(std::memory_order_acquire);
  size_t available = head - tail;
  if (available > kRingBytes) {
    return Status(StatusCode::protocol_error, "the peer's ring in shared memory is damaged");
  }
  if (available == 0) {
    if (peer_gone_) return Status(StatusCode::peer_lost, "its process has ended");
    return size_t{0};
  }
  const bool was_half_full = available > kRingBytes / 2;
  size_t total = 0;
  for (int i = 0; i < num_parts && available > 0; ++i) {
    auto* to = static_cast<std::byte*>(parts[i].iov_base);
    size_t left = std::min(parts[i].iov_len, available);
    total += left;
    available -= left;
    while (left > 0) {
      const size_t at = tail % kRingBytes;
      const size_t bytes = std::min(left, kRingBytes - at);
      std::memcpy(to, in_ + at, bytes);
      to += bytes;
      tail += bytes;
      left -= bytes;
    }
  }
  in_control_.tail.store(tail, std::memory_order_release);
  if (was_half_full) notify();  // the peer may sleep because the ring was full
  return total;
}

bool ShmChannel::maybe_readable() const {
  return peer_gone_ || in_control_.head.load(std::memory_order_relaxed) !=
                           in_control_.tail.load(std::memory_order_relaxed);
}

Status ShmChannel::read(RemoteAddress from, void* to, size_t bytes, Access* access) {
  Status status;
  if (const std::byte* source = mapped(from, bytes)) {
    copy_mapped(to, source, bytes);
  } else if (!can_read_process(peer_.pid, from.address, to, bytes)) {
    status = copy_error("process_vm_readv", bytes);
  }
  const bool is_revoked = peer_revoked();
  *access = is_revoked ? Access::revoked : Access::done;
  return is_revoked ? Status() : status;
}

// Pairs with the fence of revoke(): who has read something newer sees that it is.
bool ShmChannel::peer_revoked() const {
  std::atomic_thread_fence(std::memory_order_seq_cst);
  return in_control_.owner_revoked.load(std::memory_order_relaxed) != 0;
}

void ShmChannel::revoke() {
  out_control_.owner_revoked.store(1, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_seq_cst);
}

Status ShmChannel::write(RemoteAddress to, const void* from, size_t bytes, Access* access) {
  *access = Access::done;
  if (std::byte* target = mapped(to, bytes)) {
    copy_mapped(target, from, bytes);
    return Status();
  }
  const iovec local{const_cast<void*>(from), bytes};
  const iovec remote{reinterpret_cast<void*>(to.address), bytes};
  const ssize_t copied = process_vm_writev(peer_.pid, &local, 1, &remote, 1, 0);
  if (copied == static_cast<ssize_t>(bytes)) return Status();
  return copy_error("process_vm_writev", bytes);
}

Status ShmChannel::copy_error(const char* call, size_t bytes) const {
  const int error = errno;
  if (error == ESRCH) return Status(StatusCode::peer_lost, "its process has ended");
  return errno_status(StatusCode::io_error,
                      str_cat(call, " of ", bytes, " bytes, process ", peer_.pid,
                              " (DMLCOMM_SHM_SINGLE_COPY=0 does without)"),
                      error);
}

void ShmChannel::notify() {
  EventLoop::ring(peer_.doorbell.get(), peer_.segment->header().sleeping);
}

bool ShmChannel::peer_showed_life() {
  const uint64_t heartbeat = peer_.segment->header().heartbeat.load(std::memory_order_relaxed);
  return std::exchange(seen_heartbeat_, heartbeat) != heartbeat;
}

void ShmChannel::descriptor_ready(Ready ready) {
  if (!ready.readable) return;
  char byte;
  const ssize_t got = recv(peer_.socket.get(), &byte, 1, MSG_DONTWAIT);
  // Nothing is ever sent here after the handshake: only the end of the peer can make it readable.
  if (got >= 0 || (errno != EAGAIN && errno != EINTR)) peer_gone_ = true;
}

void ShmChannel::shut_down() {
  notify();
  shutdown(peer_.socket.get(), SHUT_WR);
}

std::string ShmChannel::description() const {
  return str_cat("shared memory", peer_reaches_us() && reaches_peer() ? ", single copy" : "");
}

}  // namespace dmlcomm::transport::shm
