// Memory on huge pages: of our own (allocate_huge), and tensors that are used again and again
// (HugePages).
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>

#include "memory/span.h"

namespace dmlcomm {

class SharedArena;

constexpr size_t kHugePageBytes = size_t{2} << 20;
constexpr int kMadvCollapse = 25;  // MADV_COLLAPSE, of Linux 6.1; headers may be older

// Memory of our own that other processes read and write, on huge pages: in the arena that they may
// map, if this process has made one; else of the heap, where it is large.
struct FreeHugeMemory {
  size_t bytes = 0;
  size_t alignment = 0;
  SharedArena* arena = nullptr;  // null: the heap
  void operator()(std::byte* memory) const;
};
using HugeMemory = std::unique_ptr<std::byte[], FreeHugeMemory>;

// Uninitialised. The kernel is asked for huge pages if `advise`; where it cannot, nothing changes.
HugeMemory allocate_huge(size_t bytes, bool advise);

// Moves large tensors that are used again and again onto huge pages.
//
// Copying to or from another process looks every page up and pins it, and each 4 KiB page costs an
// entry of the TLB on both sides: with huge pages a 16 MiB all-reduce between two ranks takes two
// thirds of the time. The kernel does the move (MADV_COLLAPSE, Linux 6.1): contents and addresses
// stay as they are; pages that were never touched are filled in. It costs about as much as copying
// the tensor once, so only memory that comes a second time is moved.
//
// One call at a time.
class HugePages {
 public:
  explicit HugePages(bool enabled) : enabled_(enabled) {}

  // Memory that an operation is about to use: begin(), and each of its tensors.
  void begin();
  void consider(Span memory);

 private:
  // The huge pages that lie completely inside a tensor.
  struct Range {
    uintptr_t begin = 0;
    uintptr_t end = 0;
    uintptr_t moved_to = 0;  // what lies before it is done
    uint64_t request = 0;    // that it came with last
    int num_failures = 0;
  };

  const bool enabled_;
  size_t budget_ = 0;  // bytes that the current request may still move
  uint64_t num_requests_ = 0;
  std::list<Range> recent_;  // most recently used first
};

}  // namespace dmlcomm
