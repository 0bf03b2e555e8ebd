// broadcast, chain: segments follow each other from rank to rank.
//
// Source: folklore; the linear pipeline of MPI implementations. Vocabulary: the vector is cut into
// K *segments*; ranks are ordered root, root + 1, ..., root - 1 (mod N).
//
// Steps: each rank receives segment after segment from its predecessor and passes each on as soon
// as it has it: N - 2 + K rounds of S / K bytes. On the wire: every rank sends and receives S bytes
// at most, the least possible; time tends to S beta when K is large against N.
//
// Example, N = 3, K = 2: 0 sends segment 0 to 1; then segment 1 to 1 while 1 sends segment 0 to
// 2; then 1 sends segment 1 to 2.
#include "schedule/algorithms/generators.h"

#include <algorithm>

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

void add_broadcast_chain(ScheduleBuilder* builder, const Group& group, uint32_t root,
                         const Range& all, uint32_t element_bytes) {
  const uint32_t index = group.index, size = group.size();
  const double bytes = static_cast<double>(all.length) * element_bytes;
  const Parts segment(all, num_segments(bytes), element_bytes);
  for (uint32_t k = 0; k < num_segments(bytes); ++k) {
    if (index != root) builder->recv(segment(k), group.previous());
    if ((index + 1) % size != root) builder->send(segment(k), group.next());
  }
}

Schedule broadcast_chain(const OpShape& shape, const topology::Topology&) {
  ScheduleBuilder builder(shape);
  add_broadcast_chain(&builder, group_of_all(shape.rank, shape.num_ranks), shape.root,
                      {BufferId::output, 0, shape.counts[0]}, shape.element_bytes);
  return builder.build();
}

// The first segment goes all the way; the others follow it at the pace of the slower
// of posting and moving one.
double broadcast_chain_seconds(const EstimateTerms& terms) {
  const double segments = num_segments(terms.bytes);
  const double move = terms.next(terms.bytes, terms.bytes) / segments;
  return (terms.num_ranks - 1) * (terms.latency_of(1) + move) +
         (segments - 1) * std::max(terms.overhead, move);
}

}  // namespace dmlcomm::schedule
