// Window: the pushes of one clock to one piece, added up until they are applied.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

namespace dmlcomm::ps {

// Memory for sums: buffers of one size that come back.
class BufferPool {
 public:
  using Buffer = std::unique_ptr<std::byte[]>;

  explicit BufferPool(size_t bytes) : bytes_(bytes) {}

  Buffer take() {
    {
      std::lock_guard lock(mutex_);
      if (!free_.empty()) {
        Buffer buffer = std::move(free_.back());
        free_.pop_back();
        return buffer;
      }
    }
    return std::make_unique_for_overwrite<std::byte[]>(bytes_);
  }

  void give(Buffer buffer) {
    std::lock_guard lock(mutex_);
    free_.push_back(std::move(buffer));
  }

 private:
  const size_t bytes_;
  std::mutex mutex_;
  std::vector<Buffer> free_;
};

struct Window {
  uint64_t clock = 0;
  uint32_t num_pushes = 0;
  double learning_rate = 0;  // of the last push that named one; NaN: none did
  BufferPool::Buffer sum;    // of the stored type
  std::vector<bool> rows;    // sparse: those that have been pushed
};

}  // namespace dmlcomm::ps
