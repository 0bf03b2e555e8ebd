// Alignments of memory, and sizes rounded to them.
#pragma once

#include <unistd.h>

#include <cstddef>

#include "base/check.h"

namespace dmlcomm {

// Of x86-64 and of arm64 servers. Different cores write to different lines.
constexpr size_t kCacheLineBytes = 64;

// Of this kernel.
inline size_t page_bytes() {
  static const long bytes = sysconf(_SC_PAGESIZE);
  DMLCOMM_CHECK(bytes > 0);
  return static_cast<size_t>(bytes);
}

// `bytes`, or an address, up to the next multiple of `unit`.
constexpr size_t round_up(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

}  // namespace dmlcomm
