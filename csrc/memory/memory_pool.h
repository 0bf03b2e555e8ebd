// MemoryPool: scratch memory of one communicator, kept between operations as far as it is small.
#pragma once

#include <cstddef>
#include <memory>
#include <new>
#include <vector>

#include "base/alignment.h"

namespace dmlcomm {

class MemoryPool {
 public:
  struct Free {
    size_t bytes;
    void operator()(std::byte* memory) const { ::operator delete[](memory, kAlignment); }
  };
  // Uninitialised, cache-line aligned memory.
  using Block = std::unique_ptr<std::byte[], Free>;

  // A kept block of at least `bytes` that is not more than twice as large, or a new one. The last
  // that came back is the most likely to be in the cache.
  Block take(size_t bytes) {
    for (size_t i = kept_.size(); i-- > 0;) {
      const size_t kept = kept_[i].get_deleter().bytes;
      if (kept < bytes || kept / 2 > bytes) continue;
      Block block = std::move(kept_[i]);
      kept_.erase(kept_.begin() + static_cast<ptrdiff_t>(i));
      kept_bytes_ -= kept;
      return block;
    }
    return Block(static_cast<std::byte*>(::operator new[](bytes, kAlignment)), Free{bytes});
  }

  void give_back(Block block) {
    const size_t bytes = block.get_deleter().bytes;
    if (block == nullptr || kept_bytes_ + bytes > kMaxKeptBytes) return;
    kept_bytes_ += bytes;
    kept_.push_back(std::move(block));
  }

 private:
  static constexpr std::align_val_t kAlignment{kCacheLineBytes};
  // Enough for scratch and windows of small and medium operations; memory of large ones is
  // returned.
  static constexpr size_t kMaxKeptBytes = 8u << 20;

  std::vector<Block> kept_;
  size_t kept_bytes_ = 0;
};

}  // namespace dmlcomm
