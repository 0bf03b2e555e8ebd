// BmlShares: how much of the vector each stream of a BML algorithm has.
//
// Stream t begins at level t, where it moves most, since every later step moves a part of the set
// only (bml_stream.h). With equal shares all levels of a BCube whose rails have one rate are busy
// for as long. Where rates or sizes of levels differ, the rail that is busy longest decides, and
// streams that begin elsewhere have more. Source: the loads are those of NeurIPS 2018 (see
// all_reduce_bml.cc), which has equal rails; the shares are ours.
//
// Where shares are unequal, streams do not take turns on all rails in every step: a rail would wait
// for the first step of the stream that has most, and at the end for its last. So the share is cut
// in *segments*, which follow each other through the steps as streams of their own.
//
// Example, sizes {3, 3}, rail 1 four times as slow: equal shares keep it busy for 1.78 times as
// long as a vector takes on rail 0, in each stage; all in stream 0 keeps it busy for 0.89 times as
// long.
#pragma once

#include <cstdint>
#include <vector>

#include "schedule/pieces.h"
#include "topology/topology.h"

namespace dmlcomm::schedule {

// Segments of a share.
constexpr uint32_t kMaxBmlSegments = 16;

class BmlShares {
 public:
  // Of a topology with a grid. Every rank gets the same.
  explicit BmlShares(const topology::Topology& topology);

  uint32_t num_streams() const { return static_cast<uint32_t>(units_.size()); }
  // The share of a stream, of 1.
  double of(uint32_t stream) const { return static_cast<double>(units_[stream]) / kUnits; }
  bool are_equal() const { return are_equal_; }
  // In how many segments a share of so many bytes is cut.
  uint32_t num_segments(uint64_t bytes) const;
  // The stream's share of a range, which may be empty.
  Range cut(const Range& whole, uint32_t stream, uint32_t element_bytes) const;

 private:
  // So many can be shared by 2 to 6 streams equally.
  static constexpr uint32_t kUnits = 120;

  std::vector<uint32_t> units_;
  bool are_equal_ = true;
};

// Of stream t, the share of its bytes that each level moves, each way, in one stage.
std::vector<double> bml_loads(const std::vector<uint32_t>& grid, uint32_t stream);

}  // namespace dmlcomm::schedule
