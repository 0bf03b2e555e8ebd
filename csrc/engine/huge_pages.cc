#include "engine/huge_pages.h"

#include <sys/mman.h>

#include <algorithm>
#include <utility>

#include "base/alignment.h"
#include "memory/huge_memory.h"
#include "memory/shared_blocks.h"

namespace dmlcomm::engine {
namespace {

// Tensors that are remembered: a step of training uses a few dozen buckets.
constexpr size_t kMaxRanges = 256;
// Moved for one operation, so that none is held up for long (about 10 ms).
constexpr size_t kMaxMoveBytes = 64u << 20;

// If the kernel cannot (too old, memory fragmented or in use, a mapped file) the tensor stays as it
// is, after a few tries.
constexpr int kMaxFailures = 3;

}  // namespace

void HugePages::begin() {
  ++num_requests_;
  budget_ = kMaxMoveBytes;
}

void HugePages::consider(const OpRequest& request) {
  if (!enabled_) return;
  begin();
  for (size_t i = 0; i < request.input.num_pieces(); ++i) consider(request.input.piece(i));
  for (size_t i = 0; i < request.output.num_pieces(); ++i) consider(request.output.piece(i));
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

}  // namespace dmlcomm::engine
