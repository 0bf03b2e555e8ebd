// HugePages: moves large tensors that are used again and again onto huge pages.
//
// Copying to or from another process looks every page up and pins it, and each 4 KiB page costs an
// entry of the TLB on both sides: with huge pages a 16 MiB all-reduce between two ranks takes two
// thirds of the time. The kernel does the move (MADV_COLLAPSE, Linux 6.1): contents, addresses and
// everything else about the memory stay as they are, and no page is added to it. It costs about as
// much as copying the tensor once, so only what comes a second time is moved.
//
// All calls come with the progress lock held.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>

#include "engine/op_state.h"

namespace dmlcomm::engine {

class HugePages {
 public:
  explicit HugePages(bool enabled) : enabled_(enabled) {}

  // The tensors of `request` are about to be used, and no other process works on them yet.
  void consider(const OpRequest& request);

 private:
  // The huge pages that lie completely inside a tensor.
  struct Range {
    uintptr_t begin = 0;
    uintptr_t end = 0;
    uintptr_t moved_to = 0;  // what lies before it is done
  };

  void consider(Span memory);

  const bool enabled_;
  std::list<Range> recent_;  // most recently used first
};

}  // namespace dmlcomm::engine
