// HugeMemory: memory of our own that other processes read and write, on huge pages where it is
// large; in the arena that they may map, if this process has made one.
#pragma once

#include <cstddef>
#include <memory>

namespace dmlcomm {

class SharedArena;

constexpr size_t kHugePageBytes = size_t{2} << 20;

struct FreeHugeMemory {
  size_t bytes = 0;
  size_t alignment = 0;
  SharedArena* arena = nullptr;  // null: the heap
  void operator()(std::byte* memory) const;
};
using HugeMemory = std::unique_ptr<std::byte[], FreeHugeMemory>;

// Uninitialised. The kernel is advised to take huge pages if `advise`; where it cannot, nothing
// changes.
HugeMemory allocate_huge(size_t bytes, bool advise);

}  // namespace dmlcomm
