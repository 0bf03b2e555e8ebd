// Earliest: the least of many times of which each changes often. A tournament: every node of a
// binary tree has the better of its two children, so a change goes up only as far as it matters.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

namespace dmlcomm::sim {

class Earliest {
 public:
  // All times are infinite.
  explicit Earliest(size_t count) : first_leaf_(std::bit_ceil(std::max<size_t>(count, 1))) {
    times_.resize(2 * first_leaf_, std::numeric_limits<double>::infinity());
  }

  void set(uint32_t index, double time) {
    size_t node = first_leaf_ + index;
    times_[node] = time;
    for (node /= 2; node > 0; node /= 2) {
      const double least = std::min(times_[2 * node], times_[2 * node + 1]);
      if (times_[node] == least) return;
      times_[node] = least;
    }
  }

  double time() const { return times_[1]; }

  // Where time() stands; the first such index.
  uint32_t index() const {
    size_t node = 1;
    while (node < first_leaf_) node = times_[2 * node] == times_[1] ? 2 * node : 2 * node + 1;
    return static_cast<uint32_t>(node - first_leaf_);
  }

 private:
  size_t first_leaf_;
  std::vector<double> times_;  // node n has the children 2n and 2n + 1; node 0 is unused
};

}  // namespace dmlcomm::sim
