#include "schedule/algorithms/all_reduce_recursive_doubling.h"

#include "schedule/algorithms/power_of_two_fold.h"
#include "schedule/schedule_builder.h"

namespace dmlcomm::schedule {

Schedule all_reduce_recursive_doubling(const OpShape& shape) {
  const PowerOfTwoFold fold(shape.rank, shape.num_ranks);
  const Range output{BufferId::output, 0, shape.counts[0]};
  const Range scratch{BufferId::scratch, 0, shape.counts[0]};

  ScheduleBuilder builder(shape, "all_reduce_recursive_doubling");
  if (fold.is_extra) {
    builder.send(output, fold.partner);
    builder.recv(output, fold.partner);
    return builder.build();
  }
  if (shape.num_ranks > 1) builder.use_scratch(shape.counts[0]);
  if (fold.has_extra) builder.recv_reduce(output, output, fold.partner, false);
  bool in_output = true;
  for (uint32_t bit = 1; bit < fold.core_size; bit *= 2) {
    const uint32_t peer = fold.rank_of(fold.core_rank ^ bit);
    const Range& operand = in_output ? output : scratch;
    builder.send(operand, peer);
    const Range& result = in_output ? scratch : output;
    const bool is_last = 2 * bit == fold.core_size;
    if (fold.core_rank & bit) {
      builder.recv_reduce_received_first(result, operand, peer, is_last);
    } else {
      builder.recv_reduce(result, operand, peer, is_last);
    }
    in_output = !in_output;
  }
  if (fold.has_extra) builder.send(in_output ? output : scratch, fold.partner);
  if (!in_output) builder.copy(output, scratch);
  return builder.build();
}

double all_reduce_recursive_doubling_seconds(const CostTerms& terms) {
  const PowerOfTwoFold fold(0, terms.num_ranks);
  const double move = terms.far(terms.bytes, terms.bytes);
  const double combination = terms.gamma * terms.bytes;
  const uint32_t rounds = ceil_log2(fold.core_size);
  const double core = rounds * (terms.latency_of(fold.core_size) + move + combination) +
                      (rounds % 2 == 1 ? combination : 0);
  if (fold.num_extras == 0) return core;
  return core + 2 * (terms.latency_of(fold.num_extras) + move) + combination;
}

}  // namespace dmlcomm::schedule
