// BufferPool: memory for pushes and their sums, in buffers of one size that come back.
//
// It comes in slabs of several buffers. Those that a round has not needed go back to the system, so
// what a slow worker has piled up does not stay for the rest of a job. Buffers are taken from the
// slab at the lowest address, so the others become empty.
#pragma once

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

#include "base/alignment.h"
#include "memory/huge_pages.h"

namespace dmlcomm {

class BufferPool {
 public:
  struct GiveBack {
    BufferPool* pool;
    void operator()(std::byte* data) const { pool->give(data); }
  };
  // Goes back to its pool, which outlives it.
  using Buffer = std::unique_ptr<std::byte[], GiveBack>;

  BufferPool(size_t bytes, bool huge_pages)
      : bytes_(round_up(bytes, kCacheLineBytes)),
        buffers_per_slab_(bytes_ < kSmallBytes ? 1 : std::max(size_t{1}, kHugePageBytes / bytes_)),
        huge_pages_(huge_pages) {}

  size_t bytes() const { return bytes_; }  // of a buffer
  bool huge_pages() const { return huge_pages_; }

  // Bytes of all buffers, in use and free.
  size_t held_bytes() const {
    std::lock_guard lock(mutex_);
    return num_buffers() * bytes_;
  }

  Buffer take() {
    std::vector<HugeMemory> unneeded;  // freed after the lock
    std::lock_guard lock(mutex_);
    if (++num_takes_ > kTakesPerBuffer * most_taken_) unneeded = end_round();
    if (with_room_.empty()) grow();
    most_taken_ = std::max(most_taken_, ++num_taken_);
    std::vector<std::byte*>& free = slabs_.find(*with_room_.begin())->second.free;
    std::byte* data = free.back();
    free.pop_back();
    if (free.empty()) with_room_.erase(with_room_.begin());
    return Buffer(data, GiveBack{this});
  }

 private:
  static constexpr size_t kSmallBytes = 32 * 1024;  // these come one at a time
  // A round has so many takes for each buffer that was in use at once. A slab that goes too early
  // costs its page faults once in a round.
  static constexpr size_t kTakesPerBuffer = 8;

  struct Slab {
    HugeMemory memory;
    std::vector<std::byte*> free;
  };

  void give(std::byte* data) {
    std::lock_guard lock(mutex_);
    --num_taken_;
    const auto slab = std::prev(slabs_.upper_bound(data));
    slab->second.free.push_back(data);
    with_room_.insert(slab->first);
  }

  size_t num_buffers() const { return slabs_.size() * buffers_per_slab_; }

  void grow() {
    Slab slab{allocate_huge(buffers_per_slab_ * bytes_, huge_pages_), {}};
    std::byte* const begin = slab.memory.get();
    for (size_t i = buffers_per_slab_; i-- > 0;) slab.free.push_back(begin + i * bytes_);
    with_room_.insert(begin);
    slabs_.emplace(begin, std::move(slab));
  }

  // The memory that the round has not needed.
  std::vector<HugeMemory> end_round() {
    std::vector<HugeMemory> unneeded;
    for (auto it = slabs_.end(); it != slabs_.begin();) {
      --it;
      if (num_buffers() < most_taken_ + buffers_per_slab_) break;
      if (it->second.free.size() < buffers_per_slab_) continue;
      unneeded.push_back(std::move(it->second.memory));
      with_room_.erase(it->first);
      it = slabs_.erase(it);
    }
    num_takes_ = 0;
    most_taken_ = num_taken_;
    return unneeded;
  }

  const size_t bytes_;
  const size_t buffers_per_slab_;
  const bool huge_pages_;
  mutable std::mutex mutex_;
  // Guarded by mutex_.
  std::map<std::byte*, Slab> slabs_;  // by their first byte
  std::set<std::byte*> with_room_;    // those that have free buffers
  size_t num_taken_ = 0;
  size_t most_taken_ = 0;  // at once in this round
  size_t num_takes_ = 0;   // in this round
};

}  // namespace dmlcomm
