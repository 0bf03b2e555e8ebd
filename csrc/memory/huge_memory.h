// HugeMemory: memory of our own that other processes read and write, on huge pages: in the arena
// that they may map, if this process has made one; else of the heap, where it is large.
#pragma once

#include <cstddef>
#include <memory>

namespace dmlcomm {

class SharedArena;

constexpr size_t kHugePageBytes = size_t{2} << 20;
constexpr int kMadvCollapse = 25;  // MADV_COLLAPSE, of Linux 6.1; headers may be older

struct FreeHugeMemory {
  size_t bytes = 0;
  size_t alignment = 0;
  SharedArena* arena = nullptr;  // null: the heap
  void operator()(std::byte* memory) const;
};
using HugeMemory = std::unique_ptr<std::byte[], FreeHugeMemory>;

// Uninitialised. The kernel is asked for huge pages if `advise`; where it cannot, nothing changes.
HugeMemory allocate_huge(size_t bytes, bool advise);

}  // namespace dmlcomm
