// BufferPool: memory for pushes and their sums, in buffers of one size that come back.
#pragma once

#include <algorithm>
#include <cstddef>
#include <memory>
#include <mutex>
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
      : bytes_(round_up(bytes, kCacheLineBytes)), huge_pages_(huge_pages) {}

  size_t bytes() const { return bytes_; }  // of a buffer
  bool huge_pages() const { return huge_pages_; }

  Buffer take() {
    std::lock_guard lock(mutex_);
    if (free_.empty()) grow();
    std::byte* data = free_.back();
    free_.pop_back();
    return Buffer(data, GiveBack{this});
  }

 private:
  static constexpr size_t kSmallBytes = 32 * 1024;

  void give(std::byte* data) {
    std::lock_guard lock(mutex_);
    free_.push_back(data);
  }

  // Small buffers come one at a time, large ones by the huge page.
  void grow() {
    const size_t num = bytes_ < kSmallBytes ? 1 : std::max(size_t{1}, kHugePageBytes / bytes_);
    slabs_.push_back(allocate_huge(num * bytes_, huge_pages_));
    for (size_t i = num; i-- > 0;) free_.push_back(slabs_.back().get() + i * bytes_);
  }

  const size_t bytes_;
  const bool huge_pages_;
  std::mutex mutex_;
  // Guarded by mutex_.
  std::vector<HugeMemory> slabs_;
  std::vector<std::byte*> free_;
};

}  // namespace dmlcomm
