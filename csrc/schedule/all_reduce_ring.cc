#include "schedule/all_reduce_ring.h"

#include <vector>

#include "schedule/chunk_size.h"
#include "schedule/schedule_builder.h"
#include "topology/partition.h"

namespace dmlcomm::schedule {
namespace {

constexpr uint32_t kMaxChunks = 2;

// The chunks of a part. Every rank cuts it in the same way.
std::vector<Range> chunks_of(const Range& part, uint32_t element_bytes) {
  const uint32_t count = num_chunks(part.length * element_bytes, kMaxChunks);
  const topology::Partition cuts(part.length, count, element_bytes);
  std::vector<Range> chunks;
  for (uint32_t i = 0; i < count; ++i) {
    chunks.push_back({part.buffer, part.offset + cuts.begin(i), cuts.length(i)});
  }
  return chunks;
}

}  // namespace

Schedule all_reduce_ring(const OpShape& shape) {
  const uint32_t rank = shape.rank, num_ranks = shape.num_ranks;
  const uint32_t next = (rank + 1) % num_ranks, previous = (rank + num_ranks - 1) % num_ranks;
  const topology::Partition parts(shape.counts[0], num_ranks, shape.element_bytes);
  // Part r - back (mod N), for back from -1 to N.
  const auto part_before = [&](uint32_t back) {
    const uint32_t p = (rank + 2 * num_ranks - back) % num_ranks;
    return Range{BufferId::output, parts.begin(p), parts.length(p)};
  };

  ScheduleBuilder builder(shape, "all_reduce_ring");
  // In round s the part that rank r passes on is r - s, which it completed in round s - 1; the part
  // it combines is the one its predecessor passes on, r - 1 - s. It finishes r + 1.
  for (uint32_t s = 0; s + 1 < num_ranks; ++s) {
    for (const Range& chunk : chunks_of(part_before(s), shape.element_bytes)) {
      builder.send(chunk, next);
    }
    for (const Range& chunk : chunks_of(part_before(s + 1), shape.element_bytes)) {
      builder.recv_reduce(chunk, chunk, previous, s + 2 == num_ranks);
    }
  }
  // The same, one part on: it starts by passing on r + 1.
  for (uint32_t s = 0; s + 1 < num_ranks; ++s) {
    for (const Range& chunk : chunks_of(part_before(s + num_ranks - 1), shape.element_bytes)) {
      builder.send(chunk, next);
    }
    for (const Range& chunk : chunks_of(part_before(s), shape.element_bytes)) {
      builder.recv(chunk, previous);
    }
  }
  return builder.build();
}

double all_reduce_ring_seconds(const CostTerms& terms) {
  const double others = terms.num_ranks - 1;
  const double moved = terms.bytes * others / terms.num_ranks;
  return 2 * others * terms.latency() + terms.next(2 * moved, 2 * moved) + terms.gamma * moved;
}

}  // namespace dmlcomm::schedule
