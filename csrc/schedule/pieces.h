// Pieces: where each rank's piece lies in a buffer that holds one piece per rank, rank after rank.
// Parts: a range that is cut evenly.
#pragma once

#include <cstdint>
#include <vector>

#include "schedule/schedule.h"
#include "topology/partition.h"

namespace dmlcomm::schedule {

class Pieces {
 public:
  explicit Pieces(const std::vector<uint64_t>& counts) : begins_(counts.size() + 1, 0) {
    for (size_t p = 0; p < counts.size(); ++p) begins_[p + 1] = begins_[p] + counts[p];
  }

  uint64_t begin(uint32_t piece) const { return begins_[piece]; }
  uint64_t length(uint32_t piece) const { return begins_[piece + 1] - begins_[piece]; }
  uint64_t total() const { return begins_.back(); }

  Range in(BufferId buffer, uint32_t piece) const { return {buffer, begin(piece), length(piece)}; }

  // Pieces [first, last) as one range; only of scratch, where pieces have no borders.
  Range in_scratch(uint32_t first, uint32_t last) const {
    return {BufferId::scratch, begin(first), begins_[last] - begins_[first]};
  }

 private:
  std::vector<uint64_t> begins_;
};

class Parts {
 public:
  Parts(const Range& whole, uint32_t num_parts, uint32_t element_bytes)
      : whole_(whole), cuts_(whole.length, num_parts, element_bytes) {}

  Range operator()(uint32_t part) const { return run(part, part + 1); }
  // Parts [first, last) as one range.
  Range run(uint32_t first, uint32_t last) const {
    return {whole_.buffer, whole_.offset + cuts_.begin(first), cuts_.length_between(first, last)};
  }

 private:
  Range whole_;
  topology::Partition cuts_;
};

}  // namespace dmlcomm::schedule
