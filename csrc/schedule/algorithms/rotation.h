// The others, in an order that spreads load: in step i every rank talks to a different peer.
#pragma once

#include <cstdint>
#include <vector>

namespace dmlcomm::schedule {

// r + 1, r + 2, ..., r + N - 1 (mod N): whom rank r sends to in step 1, 2, ...
inline std::vector<uint32_t> ranks_after(uint32_t rank, uint32_t num_ranks) {
  std::vector<uint32_t> ranks;
  for (uint32_t i = 1; i < num_ranks; ++i) ranks.push_back((rank + i) % num_ranks);
  return ranks;
}

// r - 1, r - 2, ..., r - N + 1 (mod N): who sends to rank r in step 1, 2, ...
inline std::vector<uint32_t> ranks_before(uint32_t rank, uint32_t num_ranks) {
  std::vector<uint32_t> ranks;
  for (uint32_t i = 1; i < num_ranks; ++i) ranks.push_back((rank + num_ranks - i) % num_ranks);
  return ranks;
}

}  // namespace dmlcomm::schedule
