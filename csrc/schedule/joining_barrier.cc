#include "schedule/joining_barrier.h"

#include <utility>

namespace dmlcomm::schedule {

const Algorithm& joining_barrier(const topology::Topology& topology) {
  const Algorithm& levels = *find_algorithm(OpKind::barrier, "levels");
  return levels.applies(topology) ? levels : *find_algorithm(OpKind::barrier, "dissemination");
}

void add_barrier(const OpShape& shape, const topology::Topology& topology, Schedule* schedule) {
  OpShape barrier;
  barrier.kind = OpKind::barrier;
  barrier.rank = shape.rank;
  barrier.num_ranks = shape.num_ranks;
  const auto first = static_cast<uint32_t>(schedule->steps.size());
  for (Step& step : joining_barrier(topology).generate(barrier, topology).steps) {
    for (uint32_t& dep : step.deps) dep += first;
    schedule->steps.push_back(std::move(step));
    schedule->stream_of.push_back(schedule->num_streams);
  }
  ++schedule->num_streams;
}

}  // namespace dmlcomm::schedule
