// all_reduce, halving and doubling: a reduce-scatter by recursive halving and an
// all-gather by recursive doubling.
//
// Source: Rabenseifner, "Optimization of collective reduction operations", 2004; Thakur,
// Rabenseifner, Gropp 2005. For core, extra and partner, see power_of_two_fold.h.
//
// Vocabulary: the vector is cut into P *parts*; a *window* is a run of parts. Core rank v ends
// up with the window [v, v + 1).
//
// Steps: extras hand their vector to their partner. Halving: the window starts as [0, P); with d =
// P/2, P/4, ..., 1, ranks v and v xor d, which have the same window, each keep the half that holds
// their own part and send the other. Doubling: the same exchanges backwards. Partners hand the
// result back. On the wire: 2 S (P - 1) / P bytes per core rank in 2 log2 P rounds; extras add 2 S
// and two rounds. Each element is finished by one rank, so all have identical bits.
//
// Example, N = 4: 0 sends parts 2, 3 to 2 and gets its 0, 1; sends part 1 to 1 and gets its 0; has
// part 0 of the sum. Then 0 and 1 exchange parts 0 and 1; 0 and 2 exchange 0, 1 and 2, 3.
#include "schedule/algorithms/generators.h"

#include "schedule/algorithms/power_of_two_fold.h"

namespace dmlcomm::schedule {

Schedule all_reduce_halving_doubling(const OpShape& shape, const topology::Topology&) {
  const PowerOfTwoFold fold(shape.rank, shape.num_ranks);
  const Range all{BufferId::output, 0, shape.counts[0]};

  ScheduleBuilder builder(shape);
  if (fold.is_extra) {
    builder.send(all, fold.partner);
    builder.recv(all, fold.partner);
    return builder.build();
  }
  const uint32_t v = fold.core_rank;
  const Parts parts(all, fold.core_size, shape.element_bytes);
  // The aligned window of d parts that holds part p.
  const auto window = [&](uint32_t p, uint32_t d) {
    const uint32_t first = p & ~(d - 1);
    return parts.run(first, first + d);
  };

  if (fold.has_extra) builder.recv_reduce(all, all, fold.partner, false);
  for (uint32_t d = fold.core_size / 2; d >= 1; d /= 2) {
    const uint32_t peer = fold.rank_of(v ^ d);
    builder.send(window(v ^ d, d), peer);
    builder.recv_reduce(window(v, d), window(v, d), peer, d == 1);
  }
  for (uint32_t d = 1; d < fold.core_size; d *= 2) {
    const uint32_t peer = fold.rank_of(v ^ d);
    builder.send(window(v, d), peer);
    builder.recv(window(v ^ d, d), peer);
  }
  if (fold.has_extra) builder.send(all, fold.partner);
  return builder.build();
}

double all_reduce_halving_doubling_seconds(const EstimateTerms& terms) {
  const PowerOfTwoFold fold(0, terms.num_ranks);
  const double moved = terms.bytes * (fold.core_size - 1) / fold.core_size;
  const double core = 2 * ceil_log2(fold.core_size) * terms.latency_of(fold.core_size) +
                      terms.far(2 * moved, 2 * moved) + terms.gamma * moved;
  if (fold.num_extras == 0) return core;
  return core + 2 * terms.latency_of(fold.num_extras) +
         terms.far(2 * terms.bytes, 2 * terms.bytes) + terms.gamma * terms.bytes;
}

}  // namespace dmlcomm::schedule
