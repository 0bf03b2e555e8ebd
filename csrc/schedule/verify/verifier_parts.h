// The parts of the verifier: verifier_form.cc looks at one rank, or at pairs of messages, without
// executing anything; verifier_execution.cc executes schedules symbolically. Private to the
// verifier.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "schedule/message_matching.h"
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

// --- execution

// The expression of an element: nothing, an element of one rank at the start,
// op(a, b), or a final value.
using ExpressionId = uint32_t;
constexpr ExpressionId kNothing = 0;

class Expressions {
 public:
  // The leaves are numbered first: element e of rank r has an id that leaf() can compute.
  explicit Expressions(const std::vector<uint64_t>& elements_of_rank);

  ExpressionId leaf(uint32_t rank, uint64_t element) const {
    return static_cast<ExpressionId>(first_leaf_[rank] + element);
  }
  ExpressionId combine(ExpressionId a, ExpressionId b);
  ExpressionId finalize(ExpressionId a);

  bool is_final(ExpressionId id) const { return nodes_[id].kind == Kind::final; }
  bool same(ExpressionId a, ExpressionId b) const { return nodes_[a].hash == nodes_[b].hash; }

  // Empty if `id` combines `element` of each of `num_ranks` ranks exactly once and, where there is
  // something to combine, is final; else the expected expression.
  std::string sum_fault(ExpressionId id, uint64_t element, uint32_t num_ranks) const;

  // "final(((0:7 + 1:7) + 2:7))": rank:element.
  std::string text(ExpressionId id) const;

 private:
  enum class Kind : uint8_t { nothing, leaf, combination, final };
  struct Node {
    Kind kind = Kind::nothing;
    uint64_t hash = 0;
    // leaf: rank, element. combination: the operands. final: the value, 0.
    uint64_t a = 0, b = 0;
  };
  ExpressionId add(Kind kind, uint64_t a, uint64_t b, uint64_t hash);

  std::vector<uint64_t> first_leaf_;
  std::vector<Node> nodes_;
};

// Executes all ranks' steps in one order that the dependencies allow, under the strictest reading:
// a unit starts when the steps it depends on are complete; a receiving unit completes when it and
// all sends it matches have started; a send completes when its receive has. check_races() makes
// every other order give the same values.
class Execution {
 public:
  Execution(const std::vector<OpShape>& shapes, const std::vector<Schedule>& schedules,
            const Matches& matches, Aliasing aliasing);

  // Fails on a deadlock, on reading nothing, and on combining a final value.
  Status run();

  // After run(): everyone has heard from everyone.
  Status check_barrier() const;

  const Expressions& expressions() const { return expressions_; }
  ExpressionId at(uint32_t rank, BufferId buffer, uint64_t offset) const {
    return cells_[rank][memory_[rank].cell(buffer, offset)];
  }
  // The element of the input shares its memory with the output.
  bool input_is_shared(uint32_t rank, uint64_t offset) const {
    return memory_[rank].input_is_shared(offset);
  }

 private:
  // An event is the start or the completion of a unit; all ranks' events are numbered through.
  uint32_t start_event(StepRef ref) const;
  uint32_t completion_event(StepRef ref) const { return start_event(ref) + 1; }
  void add_edge(uint32_t from, uint32_t to) { successors_[from].push_back(to); }
  void add_edges(uint32_t rank);
  Status deadlock(const std::vector<uint32_t>& waiting_for) const;

  Status complete_unit(StepRef first);
  Status apply(StepRef ref);
  Status move(StepRef ref, const std::vector<ExpressionId>& values);
  void spread_knowledge(StepRef ref);

  const std::vector<OpShape>& shapes_;
  const std::vector<Schedule>& schedules_;
  const Matches& matches_;
  std::vector<MemoryMap> memory_;
  std::vector<std::vector<uint32_t>> units_;
  std::vector<std::vector<ExpressionId>> cells_;
  Expressions expressions_;

  std::vector<uint32_t> first_event_;  // of each rank
  std::vector<StepRef> step_of_event_;
  std::vector<std::vector<uint32_t>> successors_;
  // known_[r][i][p]: when step i of rank r is complete, rank p has certainly entered. Barrier only.
  std::vector<std::vector<std::vector<bool>>> known_;
};

}  // namespace dmlcomm::schedule::verifier
