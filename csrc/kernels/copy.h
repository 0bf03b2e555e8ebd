// Copies past the cache.
#pragma once

#include <cstddef>

namespace dmlcomm::kernels {

// As memcpy, for targets that are much larger than the L2 cache and are not read again soon: they
// push nothing out of the cache, and are not fetched from memory before they are written.
// For 64 KiB 1.5 times as fast as memcpy if the memory is in no cache, half as fast if it is.
void stream_copy(void* dst, const void* src, size_t bytes);

}  // namespace dmlcomm::kernels
