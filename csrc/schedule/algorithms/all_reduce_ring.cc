// all_reduce, ring: a reduce-scatter and an all-gather around a ring of neighbours.
//
// Source: Patarasuk, Yuan, "Bandwidth optimal all-reduce algorithms for clusters of
// workstations", 2009. Vocabulary: the vector is cut into N *parts*. Rank r sends to r + 1
// and receives from r - 1 only.
//
// Steps: N - 1 rounds in which part p travels from rank p to rank p - 1 and collects every
// rank's contribution on its way; then N - 1 rounds in which the finished parts travel once
// around. On the wire: each rank sends and receives 2 S (N - 1) / N bytes, the least
// possible, in 2 (N - 1) rounds of messages that wait for each other. Large parts go in two
// chunks, so that one is on the wire while the other is added up and passed on. Each element is
// finished by one rank, so all have identical bits.
//
// Example, N = 3: part 0 goes from rank 0 to 1 (1 + 0) to 2 (2 + (1 + 0)), which has
// finished it; then to 0 and 1.
#include "schedule/algorithms/generators.h"

namespace dmlcomm::schedule {
namespace {

constexpr uint32_t kMaxChunks = 2;

// The chunks of a part. Every rank cuts it in the same way.
std::vector<Range> chunks_of(const Range& part, uint32_t element_bytes) {
  const uint32_t count = num_chunks(part.length * element_bytes, kMaxChunks);
  const Parts chunk(part, count, element_bytes);
  std::vector<Range> chunks;
  for (uint32_t i = 0; i < count; ++i) chunks.push_back(chunk(i));
  return chunks;
}

}  // namespace

void add_all_reduce_ring(ScheduleBuilder* builder, const Group& group, const Range& all,
                         uint32_t element_bytes) {
  const uint32_t index = group.index, size = group.size();
  const Parts part(all, size, element_bytes);
  // Part r - back (mod N), for back from -1 to N.
  const auto part_before = [&](uint32_t back) { return part((index + 2 * size - back) % size); };
  // In round s the part that member r passes on is r - s, which it completed in round s - 1; the
  // part it combines is the one its predecessor passes on, r - 1 - s. It finishes r + 1.
  for (uint32_t s = 0; s + 1 < size; ++s) {
    for (const Range& chunk : chunks_of(part_before(s), element_bytes)) {
      builder->send(chunk, group.next());
    }
    for (const Range& chunk : chunks_of(part_before(s + 1), element_bytes)) {
      builder->recv_reduce(chunk, chunk, group.previous(), s + 2 == size);
    }
  }
  // The same, one part on: it starts by passing on r + 1.
  for (uint32_t s = 0; s + 1 < size; ++s) {
    for (const Range& chunk : chunks_of(part_before(s + size - 1), element_bytes)) {
      builder->send(chunk, group.next());
    }
    for (const Range& chunk : chunks_of(part_before(s), element_bytes)) {
      builder->recv(chunk, group.previous());
    }
  }
}

Schedule all_reduce_ring(const OpShape& shape, const topology::Topology&) {
  ScheduleBuilder builder(shape);
  add_all_reduce_ring(&builder, group_of_all(shape.rank, shape.num_ranks),
                      {BufferId::output, 0, shape.counts[0]}, shape.element_bytes);
  return builder.build();
}

double all_reduce_ring_seconds(const EstimateTerms& terms) {
  const double moved = terms.bytes_of_others();
  return 2 * terms.others() * terms.latency() + terms.next(2 * moved) + terms.gamma * moved;
}

}  // namespace dmlcomm::schedule
