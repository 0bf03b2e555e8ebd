// all_gather, Bruck: the number of pieces a rank has doubles in each round.
//
// Source: Bruck, Ho, Kipnis, Upfal, Weathersby, "Efficient algorithms for all-to-all communications
// in multiport message-passing systems", 1997. Works for any N; pieces may differ in length.
//
// Vocabulary: *block* j of rank r is the piece of rank r + j (mod N). Blocks lie one after the
// other in scratch, so that one message carries many.
//
// Steps: in round k, with d = 2^k, rank r sends its first min(d, N - d) blocks to r - d, where they
// are blocks d, d + 1, ...; in the end blocks are copied to where their pieces belong. On the wire:
// S (N - 1) / N bytes per rank in ceil(log2 N) messages: for small pieces.
//
// Example, N = 3: 0 has block 0 (piece 0), gets block 1 (piece 1) from 1, and
// block 2 (piece 2) from 2.
#include "schedule/algorithms/generators.h"

#include <algorithm>

namespace dmlcomm::schedule {

Schedule all_gather_bruck(const OpShape& shape, const topology::Topology&) {
  const uint32_t rank = shape.rank, num_ranks = shape.num_ranks;
  const Pieces pieces(shape.counts);
  std::vector<uint64_t> block_counts = shape.counts;
  std::rotate(block_counts.begin(), block_counts.begin() + rank, block_counts.end());
  const Pieces blocks(block_counts);

  ScheduleBuilder builder(shape);
  builder.use_scratch(blocks.total());
  builder.copy(blocks.in_scratch(0, 1), {BufferId::input, 0, shape.counts[rank]});
  // Invariant: a rank has its blocks [0, d).
  for (uint32_t d = 1; d < num_ranks; d *= 2) {
    const uint32_t num_blocks = std::min(d, num_ranks - d);
    builder.send(blocks.in_scratch(0, num_blocks), (rank + num_ranks - d) % num_ranks);
    builder.recv(blocks.in_scratch(d, d + num_blocks), (rank + d) % num_ranks);
  }
  for (uint32_t j = 0; j < num_ranks; ++j) {
    builder.copy(pieces.in(BufferId::output, (rank + j) % num_ranks), blocks.in_scratch(j, j + 1));
  }
  return builder.build();
}

double all_gather_bruck_seconds(const EstimateTerms& terms) {
  const double piece = terms.bytes / terms.num_ranks;
  const double moved = terms.bytes - piece;
  const double copied = piece + terms.bytes;
  return ceil_log2(terms.num_ranks) * terms.latency() + terms.far(moved, moved) +
         terms.gamma * copied;
}

}  // namespace dmlcomm::schedule
