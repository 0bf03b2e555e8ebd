#include "schedule/joining_barrier.h"

#include <utility>

#include "schedule/algorithms.h"

namespace dmlcomm::schedule {
namespace {

// The one that no host has to relay for, where there is one.
const Algorithm& barrier_on(const topology::Topology& topology) {
  const Algorithm& levels = *find_algorithm(OpKind::barrier, "levels");
  return levels.applies(topology) ? levels : *find_algorithm(OpKind::barrier, "dissemination");
}

}  // namespace

void add_barrier(const OpShape& shape, const topology::Topology& topology, Schedule* schedule) {
  OpShape barrier;
  barrier.kind = OpKind::barrier;
  barrier.rank = shape.rank;
  barrier.num_ranks = shape.num_ranks;
  const auto first = static_cast<uint32_t>(schedule->steps.size());
  for (Step& step : barrier_on(topology).generate(barrier, topology).steps) {
    for (uint32_t& dep : step.deps) dep += first;
    schedule->steps.push_back(std::move(step));
    schedule->stream_of.push_back(schedule->num_streams);
  }
  ++schedule->num_streams;
}

}  // namespace dmlcomm::schedule
