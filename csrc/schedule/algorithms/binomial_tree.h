// BinomialTree: parent and children of a rank in the binomial tree over `num_ranks` ranks.
//
// Ranks are renumbered v = rank - root (mod N), so that the root is 0. The parent of v is
// v without its lowest set bit 2^k; the children of v are v + 2^j for all j < k (the
// root: all j) with v + 2^j < N. The subtree of v is therefore the run [v, v + 2^k), and
// the tree is ceil(log2 N) deep.
//
// Example, N = 4, root 0: 0 has children 2 and 1, 2 has the child 3.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace dmlcomm::schedule {

struct BinomialTree {
  bool is_root = true;
  uint32_t parent = 0;
  std::vector<uint32_t> children;  // largest subtree first: it has the longest way to go

  BinomialTree(uint32_t rank, uint32_t num_ranks, uint32_t root) {
    const uint32_t v = (rank + num_ranks - root) % num_ranks;
    const auto real = [&](uint64_t virtual_rank) {
      return static_cast<uint32_t>((virtual_rank + root) % num_ranks);
    };
    is_root = v == 0;
    const uint32_t lowest_bit = v & (~v + 1);
    if (!is_root) parent = real(v - lowest_bit);
    for (uint64_t d = 1; (is_root || d < lowest_bit) && v + d < num_ranks; d *= 2) {
      children.push_back(real(v + d));
    }
    std::reverse(children.begin(), children.end());
  }
};

}  // namespace dmlcomm::schedule
