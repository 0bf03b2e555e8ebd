#include "engine/huge_pages.h"

#include <sys/mman.h>

#include <algorithm>

namespace dmlcomm::engine {
namespace {

constexpr uintptr_t kHugePageBytes = 2u << 20;
// Tensors that are remembered: a step of training uses a few dozen buckets.
constexpr size_t kMaxRanges = 256;
// Moved in one go, so that an operation is never held up for long (about 10 ms).
constexpr uintptr_t kMaxMoveBytes = 64u << 20;

#ifndef MADV_COLLAPSE  // of Linux 6.1; headers may be older
#define MADV_COLLAPSE 25
#endif

}  // namespace

void HugePages::consider(const OpRequest& request) {
  if (!enabled_) return;
  for (size_t i = 0; i < request.input.num_pieces(); ++i) consider(request.input.piece(i));
  for (size_t i = 0; i < request.output.num_pieces(); ++i) consider(request.output.piece(i));
}

void HugePages::consider(Span memory) {
  const auto address = reinterpret_cast<uintptr_t>(memory.data);
  const uintptr_t begin = (address + kHugePageBytes - 1) / kHugePageBytes * kHugePageBytes;
  const uintptr_t end = (address + memory.bytes) / kHugePageBytes * kHugePageBytes;
  if (begin >= end) return;
  const auto it = std::find_if(recent_.begin(), recent_.end(), [&](const Range& range) {
    return range.begin == begin && range.end == end;
  });
  if (it == recent_.end()) {
    recent_.push_front({begin, end, begin});
    if (recent_.size() > kMaxRanges) recent_.pop_back();
    return;
  }
  recent_.splice(recent_.begin(), recent_, it);
  if (it->moved_to == end) return;
  const uintptr_t bytes = std::min(end - it->moved_to, kMaxMoveBytes);
  // Where the kernel cannot (too old, memory fragmented, a mapped file) the tensor stays as it is.
  (void)madvise(reinterpret_cast<void*>(it->moved_to), bytes, MADV_COLLAPSE);
  it->moved_to += bytes;
}

}  // namespace dmlcomm::engine
