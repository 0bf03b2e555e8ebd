// Grid: the digits of hosts on a BCube or a grid.
//
// A host's number is written with one digit per *level*; level 0 counts fastest, and level l has
// `size(l)` digits. Hosts that differ in the digit of level l alone are *neighbours* on level l:
// one switch joins them, on rail l. BCube(n, k) is the grid of k levels of size n; a flat network
// of N hosts on one rail is the grid of one level of size N.
//
// Example, sizes {3, 2}: hosts 0 to 5; host 4 has digits 1 (level 0) and 1 (level 1); its
// neighbours are 3 and 5 on level 0, and 1 on level 1.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "base/check.h"

namespace dmlcomm::topology {

class Grid {
 public:
  // Sizes of the levels, level 0 first, each at least 1; their product fits 32 bits.
  explicit Grid(std::vector<uint32_t> sizes) : sizes_(std::move(sizes)) {
    uint64_t stride = 1;
    for (uint32_t size : sizes_) {
      strides_.push_back(static_cast<uint32_t>(stride));
      stride *= size;
      DMLCOMM_CHECK(size > 0 && stride <= UINT32_MAX);
    }
    num_hosts_ = static_cast<uint32_t>(stride);
  }

  uint32_t num_levels() const { return static_cast<uint32_t>(sizes_.size()); }
  uint32_t num_hosts() const { return num_hosts_; }
  uint32_t size(uint32_t level) const { return sizes_[level]; }

  uint32_t digit(uint32_t host, uint32_t level) const {
    return host / strides_[level] % sizes_[level];
  }

  // The host that has `digit` on `level` and is `host` everywhere else.
  uint32_t with_digit(uint32_t host, uint32_t level, uint32_t digit) const {
    return host - this->digit(host, level) * strides_[level] + digit * strides_[level];
  }

  bool are_neighbours(uint32_t a, uint32_t b, uint32_t level) const {
    return a != b && with_digit(a, level, digit(b, level)) == b;
  }

  // The lowest level on which two hosts differ; num_levels() for a host and itself. Traffic between
  // hosts that differ on several levels takes this one first, and is relayed by the host there.
  uint32_t lowest_difference(uint32_t a, uint32_t b) const {
    uint32_t level = 0;
    while (level < num_levels() && digit(a, level) == digit(b, level)) ++level;
    return level;
  }

 private:
  std::vector<uint32_t> sizes_;
  std::vector<uint32_t> strides_;  // of level l: the product of the sizes below
  uint32_t num_hosts_;
};

}  // namespace dmlcomm::topology
