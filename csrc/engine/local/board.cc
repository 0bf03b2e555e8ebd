#include "engine/local/board.h"

#include <utility>

#include "engine/local/direct_runner.h"
#include "engine/local/slot_runner.h"
#include "memory/shared_blocks.h"

namespace dmlcomm::engine {
namespace {

constexpr size_t kPageBytes = 4096;
static_assert(sizeof(BoardHeader) <= kPageBytes);
constexpr size_t kNumBoards = 2;

size_t board_bytes(size_t slot_bytes) {
  return kPageBytes + BoardHeader::kNumSlots * round_up(slot_bytes, kPageBytes);
}

}  // namespace

size_t Board::area_bytes(size_t slot_bytes) { return kNumBoards * board_bytes(slot_bytes); }

Board::Board(transport::Mesh& mesh)
    : mesh_(mesh),
      rank_(mesh.rank()),
      num_ranks_(mesh.num_ranks()),
      headers_(static_cast<size_t>(num_ranks_)) {
  headers_[rank_] = reinterpret_cast<BoardHeader*>(mesh_.shared_area(rank_));
}

Board::Board(const Board& first)
    : mesh_(first.mesh_),
      rank_(first.rank_),
      num_ranks_(first.num_ranks_),
      headers_(first.headers_),
      ready_(first.ready_),
      uses_tickets_(first.uses_tickets_),
      memory_(first.memory_) {
  for (BoardHeader*& header : headers_) {
    auto* const area = reinterpret_cast<std::byte*>(header);
    header = reinterpret_cast<BoardHeader*>(area + board_bytes(slot_bytes()));
  }
}

void Board::exchange_capabilities(bool* moved) {
  if (round_ == 0) {
    bool reaches_all = true;
    if (!std::exchange(has_begun_, true)) mesh_.connect_all();
    if (!find_headers()) return;
    for (int rank = 0; rank < num_ranks_; ++rank) {
      reaches_all = reaches_all && (rank == rank_ || link(rank).memory()->reaches_peer());
    }
    header().reaches_all = reaches_all;
    header().shares_tensors = SharedBlocks::instance().enabled();
    publish();
    *moved = true;
    // The last one to publish sees all others, and wakes those that sleep.
    std::atomic_thread_fence(std::memory_order_seq_cst);
    const bool is_last = all_published(1);
    for (int rank = 0; is_last && rank < num_ranks_; ++rank) {
      if (rank != rank_) notify(rank);
    }
  }
  while (num_published_ < num_ranks_ && published(num_published_, 1)) ++num_published_;
  if (num_published_ < num_ranks_) return;
  bool reaches_all = header().reaches_all;
  bool shares_tensors = header().shares_tensors;
  for (int rank = 0; rank < num_ranks_; ++rank) {
    if (rank == rank_) continue;
    reaches_all = reaches_all && header_of(rank).reaches_all;
    shares_tensors = shares_tensors && header_of(rank).shares_tensors;
  }
  memory_ =
      shared_memory(static_cast<uint32_t>(num_ranks_), slot_bytes(), reaches_all, shares_tensors);
  ready_ = true;
  *moved = true;
}

bool Board::capabilities_wait_for(int peer) const {
  return !ready_ &&
         (mesh_.shared_area(peer) == nullptr || (peer < num_found_ && !published(peer, 1)));
}

// True if all are there.
bool Board::find_headers() {
  while (num_found_ < num_ranks_) {
    std::byte* const area = mesh_.shared_area(num_found_);
    if (area == nullptr) return false;
    headers_[num_found_++] = reinterpret_cast<BoardHeader*>(area);
  }
  return true;
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

std::unique_ptr<Runner> Board::runner_for(const OpState& op, const schedule::Algorithm& algorithm,
                                          MemoryPool& pool) {
  if (algorithm.execution == schedule::Execution::peer_memory) {
    return std::make_unique<DirectRunner>(*this, op, algorithm, pool);
  }
  return std::make_unique<SlotRunner>(*this, op, algorithm);
}

topology::SharedMemory shared_memory(uint32_t num_ranks, size_t slot_bytes, bool reaches_all,
                                     bool shares_tensors) {
  topology::SharedMemory memory;
  memory.exists = true;
  memory.slot_bytes = slot_bytes;
  memory.reaches_peers =
      reaches_all && slot_bytes >= DirectRunner::slot_bytes_for(static_cast<int>(num_ranks));
  if (shares_tensors) {
    memory.least_mapped_bytes = SharedBlocks::kMinBytes;
    memory.most_mapped_bytes = DirectRunner::most_copied_bytes(slot_bytes);
  }
  return memory;
}

}  // namespace dmlcomm::engine
