// DirectRunner: an operation that goes straight from tensor to tensor, where all ranks can reach
// each other's memory: as their own where it is in the arena (memory/shared_blocks.h), else by
// process_vm_readv and _writev, or as a copy in the rank's slot where that is small. In the first
// round of the board the slots hold addresses; then each rank does its share (direct_transfers.h),
// segment by segment; the second round says that all is in place.
#pragma once

#include <vector>

#include "base/alignment.h"
#include "engine/local/board_runner.h"
#include "engine/local/direct_transfers.h"
#include "memory/shared_blocks.h"

namespace dmlcomm::engine {

class DirectRunner final : public BoardRunner {
 public:
  DirectRunner(Board& board, const OpState& op, const schedule::Algorithm& algorithm,
               MemoryPool& pool);
  ~DirectRunner() override;

  // The regions that a rank shows to the others have to fit into a slot.
  static size_t slot_bytes_for(int num_ranks) {
    return static_cast<size_t>(num_ranks) * sizeof(Region);
  }

  // The largest tensor of which a slot holds a copy.
  static size_t most_copied_bytes(size_t slot_bytes) {
    return slot_bytes >= kCopyOffset ? slot_bytes - kCopyOffset : 0;
  }

  void stop() override;

 private:
  // In the slot, behind the region that an all_reduce shows.
  static constexpr size_t kCopyOffset = kCacheLineBytes;
  static_assert(sizeof(Region) <= kCopyOffset);

  void put() override;
  Status take(int rank) override;
  Status all_taken() override;
  Status work(bool* moved) override;

  static void consider_sharing(const std::vector<Region>& regions);
  void show(Region& region, bool is_result);
  void copy_to_slot(Region& region);
  std::byte* find_in_slot(int rank, uint64_t address, uint64_t bytes) const;
  Status prepare();
  std::byte* find_here(const Place& place, uint64_t bytes) const;
  size_t num_regions() const {
    return max_regions(request().shape.kind, static_cast<size_t>(num_ranks()));
  }
  Span tensor() const { return request().output.piece(0); }
  bool accepts(int rank) const;
  bool all_accept() const;
  Status read(const Place& source, uint64_t position, std::byte* to, size_t bytes);
  Status move_segment(const Transfer& transfer, uint64_t position, size_t bytes);
  Result<const std::byte*> reduce_segment(const Transfer& transfer, uint64_t position,
                                          size_t bytes);
  Result<const std::byte*> copy_segment(const Transfer& transfer, uint64_t position, size_t bytes);
  Status write_to(const Place& target, uint64_t position, const std::byte* data, size_t bytes);

  MemoryPool& pool_;
  const bool may_copy_;       // to the slot, a tensor that is not in the arena
  uint64_t first_round_ = 0;  // in which the others accept our writing
  std::vector<SharedBlocks::Use> uses_;
  std::byte* copy_ = nullptr;               // of the tensor, which gets the result from there
  std::vector<std::vector<Region>> shown_;  // by rank
  std::vector<Transfer> transfers_;
  size_t current_ = 0;     // transfer
  uint64_t position_ = 0;  // bytes of it that are done
  MemoryPool::Block staging_;
  bool abandoned_ = false;  // a rank has given up; the reason is on its way
};

}  // namespace dmlcomm::engine
