#include "engine/local/board.h"

#include <algorithm>
#include <cstdint>

#include "engine/local/direct_runner.h"
#include "engine/local/slot_runner.h"
#include "memory/shared_blocks.h"

namespace dmlcomm::engine {
namespace {

using schedule::OpKind;

// Where ranks reach each other's memory, data goes through the slots if a rank reads at most
// (N - 1) times this from each other one. Two copies in the cache cost less than a system call and
// a second wait, and the more ranks there are, the more system calls and waits. See
// may_be_shared().
constexpr size_t kSlotReadBytes = 16 * 1024;

// All-reduces up to this size take one round, in which every rank adds everything up for itself: it
// spares the second wait, and costs N - 1 times the reading.
constexpr size_t kOneRoundBytes = 16 * 1024;

constexpr size_t kPageBytes = 4096;
static_assert(sizeof(BoardHeader) <= kPageBytes);

size_t largest_piece(const OpRequest& request) {
  const auto& counts = request.shape.counts;
  return *std::max_element(counts.begin(), counts.end()) * size_of(request.dtype);
}

}  // namespace

size_t Board::area_bytes(size_t slot_bytes) {
  return kPageBytes + BoardHeader::kNumSlots * round_up(slot_bytes, kPageBytes);
}

Board::Board(transport::Mesh& mesh)
    : mesh_(mesh),
      rank_(mesh.rank()),
      num_ranks_(mesh.num_ranks()),
      headers_(static_cast<size_t>(num_ranks_)) {
  find_headers();
}

void Board::greet(bool* moved) {
  if (round_ == 0) {
    bool reaches_all = true;
    for (int rank = 0; rank < num_ranks_; ++rank) {
      if (rank != rank_) mesh_.link(rank);
    }
    if (!find_headers()) return;
    for (int rank = 0; rank < num_ranks_; ++rank) {
      reaches_all = reaches_all && (rank == rank_ || link(rank).memory()->reaches_peer());
    }
    header().reaches_all = reaches_all;
    header().shares_tensors = SharedBlocks::instance().enabled();
    publish();
    *moved = true;
  }
  if (!all_published(1)) return;
  direct_ = header().reaches_all;
  shares_tensors_ = header().shares_tensors;
  for (int rank = 0; rank < num_ranks_; ++rank) {
    if (rank == rank_) continue;
    direct_ = direct_ && header_of(rank).reaches_all;
    shares_tensors_ = shares_tensors_ && header_of(rank).shares_tensors;
  }
  ready_ = true;
  *moved = true;
}

bool Board::greeting_waits_for(int peer) const {
  return !ready_ && (headers_[peer] == nullptr || !published(peer, 1));
}

// True if all are there.
bool Board::find_headers() {
  bool found_all = true;
  for (int rank = 0; rank < num_ranks_; ++rank) {
    BoardHeader*& header = headers_[rank];
    header = reinterpret_cast<BoardHeader*>(mesh_.shared_area(rank));
    found_all = found_all && header != nullptr;
  }
  return found_all;
}

std::byte* Board::slot_of(int rank, uint64_t round) const {
  return reinterpret_cast<std::byte*>(&header_of(rank)) + kPageBytes +
         round % BoardHeader::kNumSlots * round_up(slot_bytes(), kPageBytes);
}

bool Board::published(int rank, uint64_t round) const {
  if (rank == rank_) return true;
  // Pairs with the release in publish(): the slot of that round is filled.
  return header_of(rank).round.load(std::memory_order_acquire) >= round;
}

bool Board::all_published(uint64_t round) const {
  for (int rank = 0; rank < num_ranks_; ++rank) {
    if (!published(rank, round)) return false;
  }
  return true;
}

void Board::publish() {
  header().round.store(++round_, std::memory_order_release);
  for (int rank = 0; rank < num_ranks_; ++rank) {
    if (rank != rank_) mesh_.notify(rank);
  }
}

std::unique_ptr<Runner> Board::runner_for(const OpState& op, MemoryPool& pool) {
  const bool goes_direct = direct_ && slot_bytes() >= DirectRunner::slot_bytes_for(num_ranks_);
  const auto num_others = static_cast<size_t>(num_ranks_ - 1);
  const bool fits = fits_slots(op, goes_direct ? kSlotReadBytes * num_others : SIZE_MAX);
  if (goes_direct && (!fits || may_be_shared(op))) {
    return std::make_unique<DirectRunner>(*this, op, pool, fits);
  }
  if (!fits) return nullptr;
  const bool is_large =
      op.request().shape.kind == OpKind::all_reduce && op.request().output.bytes() > kOneRoundBytes;
  return std::make_unique<SlotRunner>(*this, op,
                                      is_large ? SlotRunner::Rounds::two : SlotRunner::Rounds::one);
}

// An all_reduce whose tensor is in the arena needs no copies, and as many rounds as in the slots.
// (4 ranks, 64 KiB: 55 us instead of 87; 106 instead of 97 where all tensors have to be copied.)
bool Board::may_be_shared(const OpState& op) const {
  const size_t bytes = op.request().output.bytes();
  return shares_tensors_ && op.request().shape.kind == OpKind::all_reduce &&
         bytes >= SharedBlocks::kMinBytes && DirectRunner::copy_fits(bytes, slot_bytes());
}

// Whether the data fits into the slots, and no rank reads more than `max_read` from another's.
bool Board::fits_slots(const OpState& op, size_t max_read) const {
  const OpRequest& request = op.request();
  const size_t bytes = op.info().count * size_of(request.dtype);
  switch (request.shape.kind) {
    case OpKind::barrier: return true;
    case OpKind::all_reduce:
    case OpKind::reduce_scatter:
      return bytes <= slot_bytes() && bytes / static_cast<size_t>(num_ranks_) <= max_read;
    case OpKind::reduce:
    case OpKind::broadcast: return bytes <= std::min(slot_bytes(), max_read);
    case OpKind::all_gather: return largest_piece(request) <= std::min(slot_bytes(), max_read);
    default: return false;  // sizes that not every rank knows
  }
}

}  // namespace dmlcomm::engine
