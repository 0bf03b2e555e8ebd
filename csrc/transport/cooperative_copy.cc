#include "transport/cooperative_copy.h"

#include <algorithm>
#include <atomic>
#include <optional>

#include "base/check.h"
#include "base/str_cat.h"

namespace dmlcomm::transport {
namespace {

constexpr size_t kMinCooperativeBytes = 128 * 1024;
// Small enough that both end at the same time. At the beginning each takes several at once, since
// process_vm_readv is faster with more bytes, and leaves the other end as much as a few turns.
constexpr size_t kChunkBytes = 64 * 1024;
constexpr uint64_t kMaxChunksAtOnce = 8;
constexpr uint64_t kTurnsLeft = 4;
constexpr int kChunkBits = 24;
constexpr uint64_t kChunkMask = (uint64_t{1} << kChunkBits) - 1;

uint64_t chunks_in(size_t bytes) { return (bytes + kChunkBytes - 1) / kChunkBytes; }

struct Chunks {
  uint64_t number;
  size_t begin;
  size_t bytes;
};

// The next free chunks of message `id`, which are ours then.
std::optional<Chunks> claim(std::atomic<uint64_t>& claims, uint64_t id, size_t message_bytes) {
  const uint64_t total = chunks_in(message_bytes);
  uint64_t seen = claims.load();
  while (seen >> kChunkBits == id && (seen & kChunkMask) < total) {
    const uint64_t first = seen & kChunkMask;
    const uint64_t number = std::clamp((total - first) / kTurnsLeft, uint64_t{1}, kMaxChunksAtOnce);
    if (!claims.compare_exchange_weak(seen, seen + number)) continue;
    const size_t begin = first * kChunkBytes;
    return Chunks{number, begin, std::min(number * kChunkBytes, message_bytes - begin)};
  }
  return std::nullopt;
}

}  // namespace

bool can_copy_together(RemoteMemory& memory, size_t bytes) {
  return bytes >= kMinCooperativeBytes && chunks_in(bytes) < kChunkMask &&
         memory.cooperative() != nullptr;
}

bool CooperativeCopy::open(CooperativeMemory& shared, const RecvRequest& request) {
  if ((shared.incoming.load() & kChunkMask) < num_chunks_opened_) return false;
  num_chunks_opened_ = chunks_in(request.bytes);
  reading_.push_back({&request, num_chunks_opened_});
  shared.incoming.store(request.offer_id << kChunkBits);
  return true;
}

Status CooperativeCopy::read_chunks(RemoteMemory& memory, const RecvRequest& request, bool* moved) {
  const auto chunks = claim(memory.cooperative()->incoming, request.offer_id, request.bytes);
  if (!chunks) return Status();
  Access access = Access::idle;
  DMLCOMM_RETURN_IF_ERROR(memory.read(request.offer + chunks->begin,
                                      request.destination + chunks->begin, chunks->bytes, &access));
  if (access != Access::done) return Status();  // these will never be in place
  *moved = true;
  return on_shared(request.offer_id, chunks->number);
}

Status CooperativeCopy::on_shared(uint64_t id, uint64_t num_chunks) {
  const auto it = std::find_if(reading_.begin(), reading_.end(),
                               [id](const Reading& r) { return r.request->offer_id == id; });
  if (it == reading_.end() || num_chunks > it->num_chunks - it->in_place) {
    return Status(StatusCode::protocol_error,
                  str_cat(num_chunks, " chunks of message ", id, " that nobody has asked for"));
  }
  it->in_place += num_chunks;
  return Status();
}

bool CooperativeCopy::complete(const RecvRequest& request) {
  const auto it = std::find_if(reading_.begin(), reading_.end(),
                               [&](const Reading& r) { return r.request == &request; });
  DMLCOMM_CHECK(it != reading_.end());
  if (it->in_place < it->num_chunks) return false;
  reading_.erase(it);
  return true;
}

bool CooperativeCopy::give_up(CooperativeMemory& shared) {
  if (reading_.empty()) return true;
  reading_.clear();
  shared.incoming.store(0);
  return shared.wait_for_peers_write();
}

void CooperativeCopy::on_share(const SendRequest& request, uint64_t address) {
  shares_.push_back({&request, address});
}

Result<CooperativeCopy::Written> CooperativeCopy::write_chunks(RemoteMemory& memory) {
  Share& share = shares_.front();
  CooperativeMemory& shared = *memory.cooperative();
  const SendRequest& request = *share.request;
  {
    const WriteGuard guard(shared);
    if (const auto chunks = claim(shared.outgoing, request.id, request.bytes)) {
      Access access = Access::idle;
      DMLCOMM_RETURN_IF_ERROR(memory.write({share.address + chunks->begin},
                                           request.data + chunks->begin, chunks->bytes, &access));
      share.num_written += chunks->number;
      return Written();
    }
  }
  const Written written{share.request, share.num_written};
  shares_.pop_front();
  return written;
}

void CooperativeCopy::forget(const SendRequest& request) {
  std::erase_if(shares_, [&](const Share& share) { return share.request == &request; });
}

}  // namespace dmlcomm::transport
