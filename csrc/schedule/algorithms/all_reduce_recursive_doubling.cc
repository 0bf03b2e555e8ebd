// all_reduce, recursive doubling: in round k a rank exchanges its whole vector with the rank
// whose number differs in bit k.
//
// Source: Thakur, Rabenseifner, Gropp 2005. For the words core, extra and partner,
// which make it work for any N, see power_of_two_fold.h.
//
// Steps: extras hand their vector to their partner; log2 P rounds in the core; partners
// hand the result back. On the wire: S log2 P bytes per rank: for small vectors, where the
// number of rounds is what counts.
//
// Identical bits: after round k all 2^(k + 1) core ranks that agree in the bits above k hold the
// same expression. For, before the round those with bit k clear hold x and those with bit k set
// hold y (k = 0: their own vectors), and both sides then compute op(x, y): the upper side takes
// what it received as the first operand.
//
// Memory: the two sides of an exchange send and receive at the same time, so the result of a round
// goes where its operand is not: output and scratch take turns.
//
// Example, N = 3: 1 sends to 0; 0 and 2 exchange (0 + 1) and 2; 0 sends the sum to 1.
#include "schedule/algorithms/generators.h"

#include "schedule/algorithms/power_of_two_fold.h"

namespace dmlcomm::schedule {

Schedule all_reduce_recursive_doubling(const OpShape& shape, const topology::Topology&) {
  const PowerOfTwoFold fold(shape.rank, shape.num_ranks);
  const Range output{BufferId::output, 0, shape.counts[0]};
  const Range scratch{BufferId::scratch, 0, shape.counts[0]};

  ScheduleBuilder builder(shape);
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

double all_reduce_recursive_doubling_seconds(const EstimateTerms& terms) {
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
