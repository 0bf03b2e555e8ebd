#include "engine/local/board.h"

#include <cstdint>

#include "engine/local/direct_runner.h"
#include "engine/local/slot_runner.h"
#include "memory/shared_blocks.h"

namespace dmlcomm::engine {

Board::Board(transport::Mesh& mesh, int rank, int num_ranks)
    : mesh_(mesh), rank_(rank), num_ranks_(num_ranks) {}

void Board::greet(bool* moved) {
  if (round_ == 0) {
    bool reaches_all = true;
    for (int rank = 0; rank < num_ranks_; ++rank) {
      if (rank != rank_) mesh_.link(rank);
    }
    if (!connected()) return;
    for (int rank = 0; rank < num_ranks_; ++rank) {
      reaches_all = reaches_all && (rank == rank_ || mesh_.link(rank).channel()->can_pull());
    }
    header().reaches_all = reaches_all;
    header().shares_tensors = SharedBlocks::instance().enabled();
    publish();
    *moved = true;
  }
  if (!all_published(1)) return;
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

bool Board::greeting_waits_for(int peer) const {
  return !ready_ && (mesh_.peer_segment(peer) == nullptr || !published(peer, 1));
}

bool Board::connected() const {
  for (int rank = 0; rank < num_ranks_; ++rank) {
    if (rank != rank_ && mesh_.peer_segment(rank) == nullptr) return false;
  }
  return true;
}

std::byte* Board::slot_of(int rank, uint64_t round) {
  return rank == rank_ ? own_slot(round) : mesh_.peer_segment(rank)->slot(round);
}

bool Board::published(int rank, uint64_t round) const {
  if (rank == rank_) return true;
  // Pairs with the release in publish(): the slot of that round is filled.
  return mesh_.peer_segment(rank)->header().round.load(std::memory_order_acquire) >= round;
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
