// Window: the pushes of one clock to one piece, added up until they are applied.
#pragma once

#include <cstdint>
#include <vector>

#include "memory/buffer_pool.h"

namespace dmlcomm::ps {

struct Window {
  uint64_t clock = 0;
  uint32_t num_pushes = 0;
  double learning_rate = 0;  // of the last push that named one; NaN: none did
  BufferPool::Buffer sum;    // of the stored type
  std::vector<bool> rows;    // sparse: those that have been pushed
};

}  // namespace dmlcomm::ps
