#include "schedule/algorithms/all_reduce_hierarchical.h"

#include "schedule/algorithms/all_gather_direct.h"
#include "schedule/algorithms/all_reduce_bml.h"
#include "schedule/algorithms/all_reduce_ring.h"
#include "schedule/algorithms/hierarchy.h"
#include "schedule/algorithms/reduce_scatter_direct.h"

namespace dmlcomm::schedule {

Schedule all_reduce_hierarchical(const OpShape& shape, const topology::Topology& topology) {
  const Hierarchy ranks(topology, shape.rank);
  const auto part = [&](uint32_t member) { return ranks.part_of_output(shape, member); };
  const Range own = part(ranks.within.index);

  ScheduleBuilder builder(shape, "all_reduce_hierarchical");
  ranks.enter_host(&builder);
  for (uint32_t mate : ranks.mates_after()) builder.send(part(mate), ranks.within.ranks[mate]);
  builder.recv_reduce_run(own, own, ranks.ranks_of_mates_before(), false);
  ranks.leave_host(&builder);
  if (topology.grid.empty()) {
    add_all_reduce_ring(&builder, ranks.across, own, shape.element_bytes);
  } else {
    add_all_reduce_bml(&builder, ranks.across, topology::Grid(topology.grid), own,
                       shape.element_bytes);
  }
  ranks.enter_host(&builder);
  for (uint32_t mate : ranks.mates_after()) builder.send(own, ranks.within.ranks[mate]);
  for (uint32_t mate : ranks.mates_before()) builder.recv(part(mate), ranks.within.ranks[mate]);
  return builder.build();
}

double all_reduce_hierarchical_seconds(const CostTerms& terms) {
  const StageTerms stages = stage_terms(terms);
  const double between = stages.across.grid.empty() ? all_reduce_ring_seconds(stages.across)
                                                    : all_reduce_bml_seconds(stages.across);
  return reduce_scatter_direct_seconds(stages.within) + between +
         all_gather_direct_seconds(stages.within);
}

}  // namespace dmlcomm::schedule
