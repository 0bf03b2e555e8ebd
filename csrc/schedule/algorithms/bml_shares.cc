#include "schedule/algorithms/bml_shares.h"

#include <algorithm>
#include <numeric>

namespace dmlcomm::schedule {
namespace {

// Unequal shares have to promise so much: measured rates are off by up to a fifth.
constexpr double kWorthwhile = 0.85;
// A shift that wins less is an effect of rounding, in which ranks might differ.
constexpr double kClearly = 1 - 1e-6;

// Smaller ones cost more messages than they save waiting.
constexpr uint64_t kMinSegmentBytes = 256 * 1024;

// Finds shares that keep the longest busy level busy for the least time.
class Search {
 public:
  explicit Search(const topology::Topology& topology) {
    for (uint32_t t = 0; t < topology.grid.size(); ++t) {
      loads_.push_back(bml_loads(topology.grid, t));
      for (uint32_t level = 0; level < topology.grid.size(); ++level) {
        loads_[t][level] *= topology.rail_beta(level);
      }
    }
  }

  double longest(const std::vector<uint32_t>& units) const {
    const std::vector<double> busy = busy_levels(units);
    return *std::max_element(busy.begin(), busy.end());
  }

  // Takes ever fewer units from one stream for another, while that helps.
  std::vector<uint32_t> shift(std::vector<uint32_t> units, uint32_t most) {
    scale_ = 1 / longest(units);
    for (uint32_t count = most; count > 0; count /= 2) {
      while (shift_once(&units, count)) {
      }
    }
    return units;
  }

 private:
  std::vector<double> busy_levels(const std::vector<uint32_t>& units) const {
    std::vector<double> busy(loads_.size(), 0);
    for (size_t t = 0; t < loads_.size(); ++t) {
      for (size_t level = 0; level < busy.size(); ++level) {
        busy[level] += units[t] * loads_[t][level];
      }
    }
    return busy;
  }

  // The sum of high powers: about that of the longest, but it falls as well where a shift between
  // two streams shortens one of several levels that are as long.
  double cost(const std::vector<uint32_t>& units) const {
    double sum = 0;
    for (double busy : busy_levels(units)) {
      double power = busy * scale_;
      for (int squared = 0; squared < 6; ++squared) power *= power;
      sum += power;
    }
    return sum;
  }

  bool shift_once(std::vector<uint32_t>* units, uint32_t count) const {
    std::vector<uint32_t> best = *units;
    double least = kClearly * cost(*units);
    for (size_t from = 0; from < units->size(); ++from) {
      if ((*units)[from] < count) continue;
      for (size_t to = 0; to < units->size(); ++to) {
        std::vector<uint32_t> shifted = *units;
        shifted[from] -= count;
        shifted[to] += count;
        if (cost(shifted) >= least) continue;
        least = kClearly * cost(shifted);
        best = std::move(shifted);
      }
    }
    const bool is_better = best != *units;
    *units = std::move(best);
    return is_better;
  }

  std::vector<std::vector<double>> loads_;  // seconds per byte, by stream and level
  double scale_ = 1;  // of busy times in cost(): 1 is the longest at the start
};

}  // namespace

BmlShares::BmlShares(const topology::Topology& topology) {
  const auto num_streams = static_cast<uint32_t>(topology.grid.size());
  for (uint32_t t = 0; t < num_streams; ++t) {
    units_.push_back(kUnits * (t + 1) / num_streams - kUnits * t / num_streams);
  }
  Search search(topology);
  const double equal = search.longest(units_);
  if (num_streams < 2 || equal <= 0) return;
  std::vector<uint32_t> shifted = search.shift(units_, kUnits / num_streams);
  if (search.longest(shifted) > kWorthwhile * equal) return;
  units_ = std::move(shifted);
  are_equal_ = false;
}

uint32_t BmlShares::num_segments(uint64_t bytes) const {
  if (are_equal_) return 1;
  return static_cast<uint32_t>(std::clamp<uint64_t>(bytes / kMinSegmentBytes, 1, kMaxBmlSegments));
}

Range BmlShares::cut(const Range& whole, uint32_t stream, uint32_t element_bytes) const {
  if (are_equal_) return Parts(whole, num_streams(), element_bytes)(stream);
  const uint32_t first = std::accumulate(units_.begin(), units_.begin() + stream, 0u);
  return Parts(whole, kUnits, element_bytes).run(first, first + units_[stream]);
}

std::vector<double> bml_loads(const std::vector<uint32_t>& grid, uint32_t stream) {
  std::vector<double> loads(grid.size(), 0);
  double set = 1;
  for (size_t step = 0; step < grid.size(); ++step) {
    const size_t level = (step + stream) % grid.size();
    loads[level] = set * (grid[level] - 1) / grid[level];
    set /= grid[level];
  }
  return loads;
}

}  // namespace dmlcomm::schedule
