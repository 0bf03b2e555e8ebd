// The parts of the verifier that look at one rank, or at pairs of messages, without executing
// anything. Private to the verifier.
#pragma once

#include <cstdint>
#include <vector>

#include "base/status.h"
#include "schedule/op_shape.h"
#include "schedule/schedule.h"
#include "schedule/verify/verifier.h"

namespace dmlcomm::schedule::verifier {

// A rank's buffers laid side by side as cells, so that buffers that share memory share cells.
class MemoryMap {
 public:
  MemoryMap(const OpShape& shape, const Schedule& schedule, Aliasing aliasing);

  uint64_t num_cells() const { return scratch_ + num_scratch_; }
  uint64_t buffer_elements(BufferId buffer) const;
  // First cell of a range. Its further elements follow, since no legal range
  // crosses a piece's border.
  uint64_t cell(const Range& range) const { return cell(range.buffer, range.offset); }
  uint64_t cell(BufferId buffer, uint64_t offset) const;
  // The element of the input shares its cell with one of the output.
  bool input_is_shared(uint64_t offset) const {
    return aliased_buffer_ == BufferId::input ? offset - alias_begin_ < alias_length_
                                              : offset < alias_length_;
  }

 private:
  uint64_t num_input_, num_output_, num_scratch_;
  uint64_t output_, scratch_;  // first cells; the input's is 0
  // Elements [begin, begin + length) of `aliased_buffer_` are the other buffer from its start.
  BufferId aliased_buffer_ = BufferId::output;
  uint64_t alias_begin_ = 0, alias_length_ = 0;
};

// Units: steps that start and complete together. A maximal run of adjacent recv_reduce steps
// of one stream onto one range is a unit, any other step is one by itself. unit_of[i] is
// the first step of i's unit.
std::vector<uint32_t> units_of(const Schedule& schedule);

// For each step the recv_reduce before it in its stream onto the same range, which it comes after
// even without a dependency; the step itself where there is none.
std::vector<uint32_t> predecessors_onto_range(const Schedule& schedule);

Status check_form(const std::vector<OpShape>& shapes, const std::vector<Schedule>& schedules);

Status check_races(const std::vector<OpShape>& shapes, const std::vector<Schedule>& schedules,
                   Aliasing aliasing);

}  // namespace dmlcomm::schedule::verifier
