#include "memory/huge_pages.h"

#include <sys/mman.h>

#include <algorithm>
#include <new>
#include <utility>

#include "base/alignment.h"
#include "memory/shared_arena.h"
#include "memory/shared_blocks.h"

namespace dmlcomm {
namespace {

// Tensors that are remembered: a step of training uses a few dozen buckets.
constexpr size_t kMaxRanges = 256;
// Moved for one operation, so that none is held up for long (about 10 ms).
constexpr size_t kMaxMoveBytes = 64u << 20;

// If the kernel cannot (too old, memory fragmented or in use, a mapped file) the tensor stays as it
// is, after a few tries.
constexpr int kMaxFailures = 3;

}  // namespace

void FreeHugeMemory::operator()(std::byte* memory) const {
  if (arena != nullptr) return arena->free(memory, bytes);
  ::operator delete[](memory, std::align_val_t{alignment});
}

// On the heap it begins at a huge page if it has one.
HugeMemory allocate_huge(size_t bytes, bool advise) {
  if (SharedArena* arena = SharedArena::existing()) {
    std::byte* memory = arena->allocate(bytes, advise);
    if (memory != nullptr) return HugeMemory(memory, FreeHugeMemory{bytes, 0, arena});
  }
  const bool is_large = advise && bytes >= kHugePageBytes;
  const size_t alignment = is_large ? kHugePageBytes : kCacheLineBytes;
  auto* memory = static_cast<std::byte*>(::operator new[](bytes, std::align_val_t{alignment}));
  if (is_large) (void)madvise(memory, bytes / kHugePageBytes * kHugePageBytes, MADV_HUGEPAGE);
  return HugeMemory(memory, FreeHugeMemory{bytes, alignment, nullptr});
}

void HugePages::begin() {
  ++num_requests_;
  budget_ = kMaxMoveBytes;
}

void HugePages::consider(Span memory) {
  if (!enabled_) return;
  const auto address = reinterpret_cast<uintptr_t>(memory.data);
  const uintptr_t begin = round_up(address, kHugePageBytes);
  const uintptr_t end = (address + memory.bytes) / kHugePageBytes * kHugePageBytes;
  if (begin >= end) return;
  // Tensors in the arena have them already.
  if (SharedBlocks::instance().is_shared(memory.data, memory.bytes)) return;
  const auto it = std::find_if(recent_.begin(), recent_.end(), [&](const Range& range) {
    return range.begin == begin && range.end == end;
  });
  if (it == recent_.end()) {
    recent_.push_front({begin, end, begin, num_requests_, 0});
    if (recent_.size() > kMaxRanges) recent_.pop_back();
    return;
  }
  recent_.splice(recent_.begin(), recent_, it);
  const bool is_in_place = std::exchange(it->request, num_requests_) == num_requests_;
  if (is_in_place || it->moved_to == end || it->num_failures == kMaxFailures) return;
  const uintptr_t bytes = std::min(end - it->moved_to, budget_);
  if (bytes == 0) return;
  budget_ -= bytes;
  if (madvise(reinterpret_cast<void*>(it->moved_to), bytes, kMadvCollapse) == 0) {
    it->moved_to += bytes;
  } else {
    ++it->num_failures;
  }
}

}  // namespace dmlcomm
