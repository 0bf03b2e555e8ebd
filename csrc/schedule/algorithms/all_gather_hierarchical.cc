// all_gather, hierarchical: once through the network, and through shared memory inside hosts.
//
// Source: the second half of all_reduce_hierarchical.cc. Pieces may differ in length.
//
// Steps: (1) an all_gather among the ranks that have the same place on their hosts, by BML on a
// grid and in a ring elsewhere; (2) inside each host every rank sends what it has to all others.
// Through the NICs of a host pass S (H - 1) / H bytes for H hosts.
//
// Example, 2 hosts of 2 ranks: 0 gets piece 2 from 2; sends 0 and 2 to 1, and gets 1 and 3.
#include "schedule/algorithms/generators.h"

#include "schedule/algorithms/hierarchy.h"

namespace dmlcomm::schedule {

Schedule all_gather_hierarchical(const OpShape& shape, const topology::Topology& topology) {
  const Hierarchy ranks(topology, shape.rank);
  const Pieces all(shape.counts);
  const Range own{BufferId::input, 0, shape.counts[shape.rank]};
  std::vector<Range> pieces;  // of `across`
  for (uint32_t rank : ranks.across.ranks) pieces.push_back(all.in(BufferId::output, rank));

  ScheduleBuilder builder(shape);
  if (topology.grid.empty()) {
    add_all_gather_ring(&builder, ranks.across, own, pieces);
  } else {
    add_all_gather_bml(&builder, ranks.across, topology, own, pieces, shape.element_bytes);
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

double all_gather_hierarchical_seconds(const EstimateTerms& terms) {
  const StageTerms stages = stage_terms(terms);
  const double more_messages = (stages.across.num_ranks - 1.0) * (stages.within.num_ranks - 1.0);
  return (stages.across.grid.empty() ? all_gather_ring_seconds(stages.across)
                                     : all_gather_bml_seconds(stages.across)) +
         all_gather_direct_seconds(stages.within) + stages.within.overhead * more_messages;
}

}  // namespace dmlcomm::schedule
