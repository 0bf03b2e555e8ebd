#include "schedule/algorithms/all_gather_bruck.h"

#include <algorithm>
#include <vector>

#include "schedule/pieces.h"
#include "schedule/schedule_builder.h"

namespace dmlcomm::schedule {

Schedule all_gather_bruck(const OpShape& shape) {
  const uint32_t rank = shape.rank, num_ranks = shape.num_ranks;
  const Pieces pieces(shape.counts);
  std::vector<uint64_t> block_counts = shape.counts;
  std::rotate(block_counts.begin(), block_counts.begin() + rank, block_counts.end());
  const Pieces blocks(block_counts);

  ScheduleBuilder builder(shape, "all_gather_bruck");
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

double all_gather_bruck_seconds(const CostTerms& terms) {
  const double piece = terms.bytes / terms.num_ranks;
  const double moved = terms.bytes - piece;
  const double copied = piece + terms.bytes;
  return ceil_log2(terms.num_ranks) * terms.latency() + terms.far(moved, moved) +
         terms.gamma * copied;
}

}  // namespace dmlcomm::schedule
