// HugeMemory: memory of our own that other processes read and write, on huge pages where it is
// large.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <memory>
#include <new>

namespace dmlcomm {

constexpr size_t kHugePageBytes = size_t{2} << 20;

struct FreeHugeMemory {
  size_t alignment = 0;
  void operator()(std::byte* memory) const {
    ::operator delete[](memory, std::align_val_t{alignment});
  }
};
using HugeMemory = std::unique_ptr<std::byte[], FreeHugeMemory>;

// Uninitialised. From one huge page on it begins at one, and the kernel is advised; where it cannot
// follow, nothing changes.
inline HugeMemory allocate_huge(size_t bytes, bool advise) {
  constexpr size_t kCacheLineBytes = 64;
  const bool is_large = advise && bytes >= kHugePageBytes;
  const size_t alignment = is_large ? kHugePageBytes : kCacheLineBytes;
  auto* memory = static_cast<std::byte*>(::operator new[](bytes, std::align_val_t{alignment}));
  if (is_large) (void)madvise(memory, bytes / kHugePageBytes * kHugePageBytes, MADV_HUGEPAGE);
  return HugeMemory(memory, FreeHugeMemory{alignment});
}

}  // namespace dmlcomm
