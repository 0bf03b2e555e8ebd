#include "schedule/broadcast_chain.h"

#include <algorithm>

#include "schedule/schedule_builder.h"
#include "topology/partition.h"

namespace dmlcomm::schedule {

namespace {

// A segment costs a message; below this size, it costs more than its bytes on all our links.
constexpr double kSegmentBytes = 256 * 1024;
// Enough to hide the length of the chain behind the segments up to some tens of ranks.
constexpr double kMaxSegments = 64;

uint32_t num_segments(double bytes) {
  return static_cast<uint32_t>(std::clamp(bytes / kSegmentBytes, 1.0, kMaxSegments));
}

}  // namespace

Schedule broadcast_chain(const OpShape& shape) {
  const uint32_t rank = shape.rank, num_ranks = shape.num_ranks;
  const uint32_t next = (rank + 1) % num_ranks, previous = (rank + num_ranks - 1) % num_ranks;
  const uint64_t count = shape.counts[0];
  const double bytes = static_cast<double>(count) * shape.element_bytes;
  const topology::Partition segments(count, num_segments(bytes), shape.element_bytes);

  ScheduleBuilder builder(shape, "broadcast_chain");
  for (uint32_t k = 0; k < num_segments(bytes); ++k) {
    const Range segment{BufferId::output, segments.begin(k), segments.length(k)};
    if (rank != shape.root) builder.recv(segment, previous);
    if (next != shape.root) builder.send(segment, next);
  }
  return builder.build();
}

// The first segment goes all the way; the others follow it at the pace of the slower
// of posting and moving one.
double broadcast_chain_seconds(const CostTerms& terms) {
  const double segments = num_segments(terms.bytes);
  const double move = terms.next(terms.bytes, terms.bytes) / segments;
  return (terms.num_ranks - 1) * (terms.latency() + move) +
         (segments - 1) * std::max(terms.overhead, move);
}

}  // namespace dmlcomm::schedule
