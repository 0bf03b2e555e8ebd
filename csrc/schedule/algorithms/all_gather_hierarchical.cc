#include "schedule/algorithms/all_gather_hierarchical.h"

#include "schedule/algorithms/all_gather_bml.h"
#include "schedule/algorithms/all_gather_direct.h"
#include "schedule/algorithms/all_gather_ring.h"
#include "schedule/algorithms/hierarchy.h"
#include "schedule/pieces.h"

namespace dmlcomm::schedule {

Schedule all_gather_hierarchical(const OpShape& shape, const topology::Topology& topology) {
  const Hierarchy ranks(topology, shape.rank);
  const Pieces all(shape.counts);
  const Range own{BufferId::input, 0, shape.counts[shape.rank]};
  std::vector<Range> pieces;  // of `across`
  for (uint32_t rank : ranks.across.ranks) pieces.push_back(all.in(BufferId::output, rank));

  ScheduleBuilder builder(shape, "all_gather_hierarchical");
  if (topology.grid.empty()) {
    add_all_gather_ring(&builder, ranks.across, own, pieces);
  } else {
    add_all_gather_bml(&builder, ranks.across, topology::Grid(topology.grid), own, pieces,
                       shape.element_bytes);
  }
  ranks.enter_host(&builder);
  builder.copy(all.in(BufferId::output, shape.rank), own);
  for (uint32_t i = 0; i < ranks.across.size(); ++i) {
    for (uint32_t mate : ranks.mates_after()) {
      builder.send(i == ranks.across.index ? own : pieces[i], ranks.within.ranks[mate]);
    }
  }
  for (uint32_t mate : ranks.mates_before()) {
    const uint32_t peer = ranks.within.ranks[mate];
    for (uint32_t rank : group_across_hosts(topology, peer).ranks) {
      builder.recv(all.in(BufferId::output, rank), peer);
    }
  }
  return builder.build();
}

double all_gather_hierarchical_seconds(const CostTerms& terms) {
  const StageTerms stages = stage_terms(terms);
  const double more_messages = (stages.across.num_ranks - 1.0) * (stages.within.num_ranks - 1.0);
  return (stages.across.grid.empty() ? all_gather_ring_seconds(stages.across)
                                     : all_gather_bml_seconds(stages.across)) +
         all_gather_direct_seconds(stages.within) + stages.within.overhead * more_messages;
}

}  // namespace dmlcomm::schedule
