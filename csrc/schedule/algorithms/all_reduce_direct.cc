#include "schedule/algorithms/all_reduce_direct.h"

#include "schedule/algorithms/blocks.h"
#include "schedule/algorithms/rotation.h"
#include "schedule/schedule_builder.h"
#include "topology/partition.h"

namespace dmlcomm::schedule {
namespace {

Schedule whole_vector(const OpShape& shape) {
  const uint32_t rank = shape.rank;
  const topology::Partition parts(shape.counts[0], shape.num_ranks, shape.element_bytes);
  const auto part = [&](uint32_t p) {
    return Range{BufferId::output, parts.begin(p), parts.length(p)};
  };
  const auto after = ranks_after(rank, shape.num_ranks);
  const auto before = ranks_before(rank, shape.num_ranks);

  ScheduleBuilder builder(shape, "all_reduce_direct");
  for (uint32_t peer : after) builder.send(part(peer), peer);
  builder.recv_reduce_run(part(rank), part(rank), before);
  for (uint32_t peer : after) builder.send(part(rank), peer);
  for (uint32_t peer : before) builder.recv(part(peer), peer);
  return builder.build();
}

}  // namespace

Schedule all_reduce_direct(const OpShape& shape, const topology::Topology& topology) {
  return in_blocks(shape, topology, shape.num_ranks, whole_vector);
}

double all_reduce_direct_seconds(const CostTerms& terms) {
  const double others = terms.num_ranks - 1;
  const double moved = terms.bytes * others / terms.num_ranks;
  return 2 * (terms.latency(others) + terms.all(moved, moved)) + terms.gamma * moved;
}

}  // namespace dmlcomm::schedule
