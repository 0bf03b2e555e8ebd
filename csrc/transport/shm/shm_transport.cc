#include "transport/shm/shm_transport.h"

#include <algorithm>
#include <utility>

#include "base/str_cat.h"
#include "transport/admission.h"
#include "transport/process_memory.h"
#include "transport/shm/shm_channel.h"
#include "transport/socket.h"

namespace dmlcomm::transport::shm {

bool ShmTransport::reaches(int peer) const {
  return peer == job_.rank || (job_.same_host(peer) && job_.config.shares_memory());
}

Status ShmTransport::listen(Admission& admission) {
  if (!job_.config.shares_memory() || job_.num_ranks == 1) return Status();
  Result<UniqueFd> listener = listen_unix(job_.own_host().unix_name);
  if (!listener.ok()) return listener.status();
  if (job_.config.shm_single_copy) permit_reading();
  return admission.listen(std::move(*listener), *this);
}

Status ShmTransport::meet(const std::vector<int>& peers, Rendezvous&, Admission&) {
  ranks_ = peers;
  segments_.resize(static_cast<size_t>(job_.num_ranks));
  Result<std::unique_ptr<Segment>> segment =
      Segment::create(static_cast<uint32_t>(job_.rank), static_cast<uint32_t>(ranks_.size()),
                      job_.shared_area_bytes);
  if (!segment.ok()) return segment.status();
  segments_[job_.rank] = std::move(*segment);
  if (arena_ != nullptr) {
    own().header().arena_address = arena_->address();
    own().header().arena_bytes = arena_->bytes();
  }
  loop_.show_sleep_in(own().header().sleeping);
  return Status();
}

uint32_t ShmTransport::local_index(int rank) const {
  return static_cast<uint32_t>(std::find(ranks_.begin(), ranks_.end(), rank) - ranks_.begin());
}

bool ShmTransport::accepts(int fd) { return peer_is_same_user(fd); }

Result<Attempt> ShmTransport::connect(int peer, size_t) {
  Result<UniqueFd> fd = connect_unix(job_.hosts[peer].unix_name);
  if (!fd.ok()) return fd.status();
  return Attempt{std::move(*fd), {}, {}, {}};
}

std::string ShmTransport::route(int peer, size_t) {
  return str_cat("connect to Unix socket @", job_.hosts[peer].unix_name);
}

std::vector<int> ShmTransport::descriptors() const {
  std::vector<int> fds = {own().fd(), loop_.doorbell()};
  if (arena_ != nullptr) fds.push_back(arena_->fd());
  return fds;
}

Result<std::unique_ptr<Channel>> ShmTransport::open(int peer, size_t, bool, Handshake& handshake) {
  std::vector<UniqueFd> fds = handshake.take_received_fds();
  if (fds.size() != 2 && fds.size() != 3) {
    return Status(StatusCode::protocol_error, "the hello came without shared memory");
  }
  Result<std::unique_ptr<Segment>> segment =
      Segment::map(std::move(fds[0]), static_cast<uint32_t>(peer),
                   static_cast<uint32_t>(ranks_.size()), job_.shared_area_bytes);
  if (!segment.ok()) return segment.status();
  std::shared_ptr<Segment>& theirs = segments_[peer];
  theirs = std::move(*segment);
  ShmPeer state;
  state.socket = handshake.take_fd();
  state.doorbell = std::move(fds[1]);
  state.segment = theirs;
  state.local_index = local_index(peer);
  state.pid = peer_pid(state.socket.get());
  const Hello& hello = handshake.received();
  state.is_readable = job_.config.shm_single_copy && state.pid > 0 &&
                      can_read_nonce(state.pid, hello.nonce_address, hello.nonce);
  if (fds.size() == 3) {
    const Header& header = theirs->header();
    Result<MappedArena> arena =
        MappedArena::map(fds[2].get(), header.arena_address, header.arena_bytes);
    // Without it the kernel copies.
    if (arena.ok()) state.arena = std::move(*arena);
  }
  return std::unique_ptr<Channel>(
      std::make_unique<ShmChannel>(segments_[job_.rank], local_index(job_.rank), std::move(state)));
}

std::byte* ShmTransport::shared_area(int rank) const {
  const std::shared_ptr<Segment>& segment = segments_[rank];
  return segment ? segment->area() : nullptr;
}

}  // namespace dmlcomm::transport::shm
