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
    void operator()(std::byte* memory) const { ::operator delete[](memory, kAlignment); }
  };
  // `bytes` of uninitialised, cache-line aligned memory.
  class Block {
   public:
    Block() = default;
    std::byte* data() const { return data_.get(); }
    size_t bytes() const { return bytes_; }

   private:
    friend class MemoryPool;
    std::unique_ptr<std::byte[], Free> data_;
    size_t bytes_ = 0;
  };

  // A kept block of at least `bytes` that is not more than twice as large, or a new one. The last
  // that came back is the most likely to be in the cache.
  Block take(size_t bytes) {
    for (size_t i = kept_.size(); i-- > 0;) {
      if (kept_[i].bytes_ < bytes || kept_[i].bytes_ / 2 > bytes) continue;
      Block block = std::move(kept_[i]);
      kept_.erase(kept_.begin() + static_cast<ptrdiff_t>(i));
      kept_bytes_ -= block.bytes_;
      return block;
    }
    Block block;
    block.data_.reset(static_cast<std::byte*>(::operator new[](bytes, kAlignment)));
    block.bytes_ = bytes;
    return block;
  }

  void give_back(Block block) {
    if (block.data_ == nullptr || kept_bytes_ + block.bytes_ > kMaxKeptBytes) return;
    kept_bytes_ += block.bytes_;
    kept_.push_back(std::move(block));
  }

 private:
  static constexpr std::align_val_t kAlignment{kCacheLineBytes};
  // Enough for the windows of 32 peers; memory of one large reduction beyond it is returned.
  static constexpr size_t kMaxKeptBytes = 8u << 20;

  std::vector<Block> kept_;
  size_t kept_bytes_ = 0;
};

}  // namespace dmlcomm
