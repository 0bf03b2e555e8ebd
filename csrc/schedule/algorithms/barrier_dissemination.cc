#include "schedule/algorithms/barrier_dissemination.h"

#include "schedule/schedule_builder.h"

namespace dmlcomm::schedule {

Schedule barrier_dissemination(const OpShape& shape) {
  const uint32_t num_ranks = shape.num_ranks;
  ScheduleBuilder builder(shape, "barrier_dissemination");
  for (uint64_t distance = 1; distance < num_ranks; distance *= 2) {
    builder.signal(static_cast<uint32_t>((shape.rank + distance) % num_ranks));
    builder.await_signal(static_cast<uint32_t>((shape.rank + num_ranks - distance) % num_ranks));
  }
  return builder.build();
}

double barrier_dissemination_seconds(const CostTerms& terms) {
  return ceil_log2(terms.num_ranks) * terms.latency();
}

}  // namespace dmlcomm::schedule
