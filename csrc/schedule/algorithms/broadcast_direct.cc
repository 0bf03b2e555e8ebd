#include "schedule/algorithms/broadcast_direct.h"

#include "schedule/algorithms/rotation.h"
#include "schedule/schedule_builder.h"

namespace dmlcomm::schedule {

Schedule broadcast_direct(const OpShape& shape) {
  const Range all{BufferId::output, 0, shape.counts[0]};
  ScheduleBuilder builder(shape, "broadcast_direct");
  if (shape.rank != shape.root) {
    builder.recv(all, shape.root);
    return builder.build();
  }
  for (uint32_t peer : ranks_after(shape.rank, shape.num_ranks)) builder.send(all, peer);
  return builder.build();
}

double broadcast_direct_seconds(const CostTerms& terms) {
  const double others = terms.num_ranks - 1;
  return terms.latency_of(1, others) + terms.spread(terms.bytes * others, terms.bytes);
}

}  // namespace dmlcomm::schedule
