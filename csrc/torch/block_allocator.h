// Large CPU tensors lie in blocks that may be shared with the other ranks of the host
// (memory/shared_blocks.h).
#pragma once

#include "base/config.h"

namespace dmlcomm::adaptor {

// Tensors that this process makes from now on, as far as they are large. Nothing happens where
// `config` forbids to share memory, or the kernel gives no arena.
void share_large_tensors(const Config& config);

}  // namespace dmlcomm::adaptor
