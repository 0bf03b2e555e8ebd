// Chunks: messages of pipelined algorithms are cut, so that one chunk is on the wire while another
// is combined and passed on.
#pragma once

#include <algorithm>
#include <cstdint>

namespace dmlcomm::schedule {

// Chunks are at least so large: smaller ones take longer to post than to send.
constexpr uint64_t kMinChunkBytes = 32 * 1024;

// Into how many chunks a message of `bytes` is cut, at most `most`.
inline uint32_t num_chunks(uint64_t bytes, uint32_t most) {
  return static_cast<uint32_t>(std::clamp<uint64_t>(bytes / kMinChunkBytes, 1, most));
}

}  // namespace dmlcomm::schedule
