// all_reduce, hierarchical: through shared memory inside hosts, and once through the network.
//
// Source: Jia et al., "Highly scalable deep learning training system with mixed-precision: training
// ImageNet in four minutes", 2018. Several hosts with m ranks each; stages in hierarchy.h.
//
// Steps: (1) a direct reduce_scatter inside each host leaves every rank with 1 / m of the host's
// sum; (2) an all_reduce of this part with the ranks in the same place on the other hosts, by BML
// on a grid and in a ring elsewhere; (3) a direct all_gather inside each host. Through the NICs of
// a host pass 2 S (H - 1) / H bytes for H hosts, as if it had one rank.
//
// Example, 2 hosts of 2 ranks: 0 gets half 0 of 1 and adds it; exchanges quarters with 2; sends
// half 0 to 1 and gets half 1.
#include "schedule/algorithms/generators.h"

#include "schedule/algorithms/hierarchy.h"

namespace dmlcomm::schedule {

Schedule all_reduce_hierarchical(const OpShape& shape, const topology::Topology& topology) {
  const Hierarchy ranks(topology, shape.rank);
  const auto part = [&](uint32_t member) { return ranks.part_of_output(shape, member); };
  const Range own = part(ranks.within.index);

  ScheduleBuilder builder(shape);
  ranks.enter_host(&builder);
  for (uint32_t mate : ranks.mates_after()) builder.send(part(mate), ranks.within.ranks[mate]);
  builder.recv_reduce_run(own, own, ranks.ranks_of_mates_before(), false);
  ranks.leave_host(&builder);
  if (topology.grid.empty()) {
    add_all_reduce_ring(&builder, ranks.across, own, shape.element_bytes);
  } else {
    add_all_reduce_bml(&builder, ranks.across, topology, own, shape.element_bytes);
  }
  ranks.enter_host(&builder);
  for (uint32_t mate : ranks.mates_after()) builder.send(own, ranks.within.ranks[mate]);
  for (uint32_t mate : ranks.mates_before()) builder.recv(part(mate), ranks.within.ranks[mate]);
  return builder.build();
}

double all_reduce_hierarchical_seconds(const EstimateTerms& terms) {
  const StageTerms stages = stage_terms(terms);
  const double between = stages.across.grid.empty() ? all_reduce_ring_seconds(stages.across)
                                                    : all_reduce_bml_seconds(stages.across);
  return reduce_scatter_direct_seconds(stages.within) + between +
         all_gather_direct_seconds(stages.within);
}

}  // namespace dmlcomm::schedule
