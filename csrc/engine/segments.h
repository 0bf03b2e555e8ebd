// Segments: how much of a message is worked on in one go.
#pragma once

#include <algorithm>
#include <cstddef>

namespace dmlcomm::engine {

// A reduction takes one segment of every source and adds them up while they are in the L2 cache:
// the segments of all sources together stay below kStagingBytes, each within these bounds. Where
// ranks share a core they share its cache: with 1 MiB each, 4 ranks on 2 cores took 1.15 times as
// long for 16 MiB.
constexpr size_t kStagingBytes = 512 * 1024;
constexpr size_t kMinSegmentBytes = 16 * 1024;
// Read from another process: from here on process_vm_readv has its full rate.
constexpr size_t kMaxDirectSegmentBytes = 256 * 1024;
// Of a schedule: several segments of each source wait in its window, and shall still be in the
// cache. (Over TCP 4 ranks took 3.0 ms for 4 MiB with 64 KiB, 4.1 ms with 256 KiB.)
constexpr size_t kMaxStreamSegmentBytes = 64 * 1024;

// Segment of each of `num_segments` that are in the cache at once. A power of two: a multiple of
// every element, and windows hold a whole number of segments.
inline size_t segment_bytes_for(size_t num_segments, size_t max_bytes) {
  const size_t share = kStagingBytes / std::max<size_t>(1, num_segments);
  size_t bytes = kMinSegmentBytes;
  while (bytes * 2 <= std::min(share, max_bytes)) bytes *= 2;
  return bytes;
}

}  // namespace dmlcomm::engine
