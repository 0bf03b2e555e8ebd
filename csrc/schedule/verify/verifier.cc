#include "schedule/verify/verifier.h"

#include <string>

#include "base/str_cat.h"
#include "schedule/message_matching.h"
#include "schedule/pieces.h"
#include "schedule/verify/verifier_parts.h"
#include "topology/grid.h"

namespace dmlcomm::schedule {
namespace {

using verifier::Execution;
using verifier::ExpressionId;

template <typename... Text>
Status refuse(const Text&... text) {
  return {StatusCode::invalid_argument, text...};
}

// The shapes describe one collective: the ranks agree on what they share, and what one sends
// another is what that one expects.
Status check_shapes(const std::vector<OpShape>& shapes) {
  for (uint32_t rank = 0; rank < shapes.size(); ++rank) {
    const OpShape &shape = shapes[rank], &first = shapes[0];
    DMLCOMM_RETURN_IF_ERROR(validate(shape));
    if (shape.rank != rank || shape.num_ranks != shapes.size() || shape.kind != first.kind ||
        shape.root != first.root) {
      return refuse("shape ", rank, " is not that of rank ", rank, " of ", shapes.size(),
                    " in one collective");
    }
    if (shape.kind != OpKind::all_to_all) continue;
    for (uint32_t peer = 0; peer < rank; ++peer) {
      if (shape.counts[peer] == shapes[peer].recv_counts[rank] &&
          shape.recv_counts[peer] == shapes[peer].counts[rank]) {
        continue;
      }
      return refuse("ranks ", peer, " and ", rank, " disagree on their counts");
    }
  }
  return {};
}

// Checks what the execution left in the buffers against the meaning of the operation in op_shape.h.
class ResultCheck {
 public:
  ResultCheck(const std::vector<OpShape>& shapes, const std::vector<Schedule>& schedules,
              const Execution& execution)
      : shapes_(shapes), schedules_(schedules), execution_(execution) {}

  Status check() const {
    for (uint32_t rank = 0; rank < shapes_.size(); ++rank) {
      DMLCOMM_RETURN_IF_ERROR(check_output(rank));
      DMLCOMM_RETURN_IF_ERROR(check_input(rank));
    }
    return {};
  }

 private:
  Status check_output(uint32_t rank) const {
    const OpShape& shape = shapes_[rank];
    const uint64_t elements = output_elements(shape);
    if (elements == 0) return {};
    switch (shape.kind) {
      case OpKind::all_reduce:
      case OpKind::reduce: return check_sums(rank, 0, elements);
      case OpKind::reduce_scatter:
        return check_sums(rank, Pieces(shape.counts).begin(rank), elements);
      case OpKind::broadcast: return check_piece(rank, 0, shape.root, 0, elements);
      case OpKind::scatter: {
        const Pieces pieces(shapes_[shape.root].counts);
        return check_piece(rank, 0, shape.root, pieces.begin(rank), elements);
      }
      case OpKind::all_gather:
      case OpKind::gather: return check_pieces(rank, Pieces(shape.counts));
      default: return check_pieces(rank, Pieces(shape.recv_counts));
    }
  }

  Status check_pieces(uint32_t rank, const Pieces& pieces) const {
    for (uint32_t source = 0; source < shapes_.size(); ++source) {
      const bool is_all_to_all = shapes_[rank].kind == OpKind::all_to_all;
      const uint64_t first = is_all_to_all ? Pieces(shapes_[source].counts).begin(rank) : 0;
      DMLCOMM_RETURN_IF_ERROR(
          check_piece(rank, pieces.begin(source), source, first, pieces.length(source)));
    }
    return {};
  }

  // output[begin + i] of `rank` is element first + i of rank `source`.
  Status check_piece(uint32_t rank, uint64_t begin, uint32_t source, uint64_t first,
                     uint64_t length) const {
    for (uint64_t i = 0; i < length; ++i) {
      const ExpressionId found = execution_.at(rank, BufferId::output, begin + i);
      if (found == execution_.expressions().leaf(source, first + i)) continue;
      return wrong(rank, begin + i, found, str_cat("element ", first + i, " of rank ", source));
    }
    return {};
  }

  // output[i] of `rank` combines element first + i of every rank, as on the first rank that has it.
  Status check_sums(uint32_t rank, uint64_t first, uint64_t length) const {
    const uint32_t reference = shapes_[rank].kind == OpKind::all_reduce ? 0 : rank;
    for (uint64_t i = 0; i < length; ++i) {
      const ExpressionId found = execution_.at(rank, BufferId::output, i);
      if (rank != reference) {
        const ExpressionId wanted = execution_.at(reference, BufferId::output, i);
        if (execution_.expressions().same(found, wanted)) continue;
        return wrong(rank, i, found, "what rank 0 has: " + execution_.expressions().text(wanted));
      }
      const std::string fault = execution_.expressions().sum_fault(
          found, first + i, static_cast<uint32_t>(shapes_.size()));
      if (!fault.empty()) return wrong(rank, i, found, fault);
    }
    return {};
  }

  Status check_input(uint32_t rank) const {
    for (uint64_t i = 0; i < input_elements(shapes_[rank]); ++i) {
      if (execution_.input_is_shared(rank, i)) continue;
      const ExpressionId found = execution_.at(rank, BufferId::input, i);
      if (found == execution_.expressions().leaf(rank, i)) continue;
      return refuse(name_of(schedules_[rank]), ": rank ", rank, " input[", i, "] is not preserved");
    }
    return {};
  }

  Status wrong(uint32_t rank, uint64_t element, ExpressionId found,
               const std::string& expected) const {
    return refuse(name_of(schedules_[rank]), ": rank ", rank, " output[", element, "]: expected ",
                  expected, ", got ", execution_.expressions().text(found));
  }

  const std::vector<OpShape>& shapes_;
  const std::vector<Schedule>& schedules_;
  const Execution& execution_;
};

}  // namespace

Status check_rails(const topology::Topology& topology, const std::vector<Schedule>& schedules) {
  const topology::Grid grid(topology.grid);
  for (uint32_t rank = 0; rank < schedules.size(); ++rank) {
    for (uint32_t id = 0; id < schedules[rank].steps.size(); ++id) {
      const Step& step = schedules[rank].steps[id];
      if (step.rail == kAnyRail) continue;
      const uint32_t from = topology.host_of_rank[rank], to = topology.host_of_rank[step.peer];
      const bool is_reached = topology.grid.empty() || grid.are_neighbours(from, to, step.rail);
      if (step.rail < topology.num_rails && from != to && is_reached) continue;
      return step_error(schedules, rank, id, "its peer is not reached on its rail");
    }
  }
  return {};
}

Status verify(const std::vector<OpShape>& shapes, const std::vector<Schedule>& schedules,
              Aliasing aliasing) {
  if (shapes.empty() || shapes.size() != schedules.size()) {
    return refuse(shapes.size(), " shapes and ", schedules.size(), " schedules");
  }
  DMLCOMM_RETURN_IF_ERROR(check_shapes(shapes));
  DMLCOMM_RETURN_IF_ERROR(verifier::check_form(shapes, schedules));
  DMLCOMM_RETURN_IF_ERROR(verifier::check_races(shapes, schedules, aliasing));
  auto matches = match_messages(schedules);
  if (!matches.ok()) return matches.status();
  Execution execution(shapes, schedules, *matches, aliasing);
  DMLCOMM_RETURN_IF_ERROR(execution.run());
  if (shapes[0].kind == OpKind::barrier) return execution.check_barrier();
  return ResultCheck(shapes, schedules, execution).check();
}

}  // namespace dmlcomm::schedule
