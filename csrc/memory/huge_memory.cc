#include "memory/huge_memory.h"

#include <sys/mman.h>

#include <new>

#include "base/alignment.h"
#include "memory/shared_arena.h"

namespace dmlcomm {

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

}  // namespace dmlcomm
