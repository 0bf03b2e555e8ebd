// reduce_scatter, halving: recursive halving of the set of pieces a rank is concerned with.
//
// Source: Thakur, Rabenseifner, Gropp 2005. For core, extra and partner, which make it
// work for any N, see power_of_two_fold.h. Pieces may differ in length.
//
// Vocabulary: *block* v is what core rank v ends up with: its own piece, and after it that of its
// extra if it has one. The blocks in order are the pieces in order. A *window* is a run of blocks.
//
// Steps: everyone copies its input to scratch, where one message may carry many pieces. Extras hand
// all of it to their partner. With d = P/2, ..., 1, ranks v and v xor d, which have the same window
// of 2 d blocks, each keep the half that holds their own block and send the other. Last, partners
// hand their extra its piece. On the wire: S (P - 1) / P bytes per core rank in log2 P messages;
// extras add about S and two rounds. For small pieces.
//
// Example, N = 3: 1 sends everything to 0; 0 sends (0 + 1) of piece 2 to 2 and gets pieces 0, 1 of
// 2; sends piece 1 of the sum to 1.
#include "schedule/algorithms/generators.h"

#include "schedule/algorithms/power_of_two_fold.h"

namespace dmlcomm::schedule {

Schedule reduce_scatter_halving(const OpShape& shape, const topology::Topology&) {
  const uint32_t rank = shape.rank, num_ranks = shape.num_ranks;
  const PowerOfTwoFold fold(rank, num_ranks);
  const Pieces pieces(shape.counts);
  const Range result{BufferId::output, 0, shape.counts[rank]};

  ScheduleBuilder builder(shape);
  if (num_ranks == 1) {
    builder.copy(result, pieces.in(BufferId::input, rank));
    return builder.build();
  }
  builder.use_scratch(pieces.total());
  for (uint32_t p = 0; p < num_ranks; ++p) {
    builder.copy(pieces.in_scratch(p, p + 1), pieces.in(BufferId::input, p));
  }
  const Range all = pieces.in_scratch(0, num_ranks);
  if (fold.is_extra) {
    builder.send(all, fold.partner);
    builder.recv(result, fold.partner);
    return builder.build();
  }
  // The aligned window of d blocks that holds block v; block v begins with the piece of rank_of(v).
  const auto window = [&](uint32_t v, uint32_t d) {
    const uint32_t first = v & ~(d - 1);
    return pieces.in_scratch(fold.rank_of(first), fold.rank_of(first + d));
  };
  const uint32_t v = fold.core_rank;
  if (fold.has_extra) builder.recv_reduce(all, all, fold.partner, false);
  for (uint32_t d = fold.core_size / 2; d >= 1; d /= 2) {
    const uint32_t peer = fold.rank_of(v ^ d);
    builder.send(window(v ^ d, d), peer);
    builder.recv_reduce(window(v, d), window(v, d), peer, d == 1);
  }
  if (fold.has_extra) builder.send(pieces.in_scratch(rank + 1, rank + 2), fold.partner);
  builder.copy(result, pieces.in_scratch(rank, rank + 1));
  return builder.build();
}

double reduce_scatter_halving_seconds(const EstimateTerms& terms) {
  const PowerOfTwoFold fold(0, terms.num_ranks);
  const double piece = terms.bytes / terms.num_ranks;
  const double moved = terms.bytes * (fold.core_size - 1) / fold.core_size;
  const double copied = terms.bytes + piece;
  const double core = ceil_log2(fold.core_size) * terms.latency_of(fold.core_size) +
                      terms.far(moved, moved) + terms.gamma * (moved + copied);
  if (fold.num_extras == 0) return core;
  return core + 2 * terms.latency_of(fold.num_extras) + terms.far(copied, copied) +
         terms.gamma * terms.bytes;
}

}  // namespace dmlcomm::schedule
