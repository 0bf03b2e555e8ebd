// reduce_scatter, hierarchical: through shared memory inside hosts, and once through the network.
//
// Source: the first half of all_reduce_hierarchical.cc. Pieces may differ in length.
//
// Steps: (1) inside each host every rank collects in scratch the host's sums of the pieces of those
// ranks that have its place on their hosts; (2) a reduce_scatter among these, by BML on a grid and
// in a ring elsewhere. Through the NICs of a host pass S (H - 1) / H bytes for H hosts. Scratch:
// the pieces of H ranks, and what stage 2 needs.
//
// Example, 2 hosts of 2 ranks: 0 gets pieces 0 and 2 of 1 and adds them; sends 2 to 2, and gets 0.
#include "schedule/algorithms/generators.h"

#include "schedule/algorithms/hierarchy.h"

namespace dmlcomm::schedule {

Schedule reduce_scatter_hierarchical(const OpShape& shape, const topology::Topology& topology) {
  const Hierarchy ranks(topology, shape.rank);
  const Pieces pieces(shape.counts);
  ScheduleBuilder builder(shape);

  ranks.enter_host(&builder);
  for (uint32_t mate : ranks.mates_after()) {
    const uint32_t peer = ranks.within.ranks[mate];
    for (uint32_t owner : group_across_hosts(topology, peer).ranks) {
      builder.send(pieces.in(BufferId::input, owner), peer);
    }
  }
  std::vector<Range> sums;  // of the host, of the piece of each member of `across`
  for (uint32_t owner : ranks.across.ranks) {
    const uint64_t length = pieces.length(owner);
    sums.push_back({BufferId::scratch, builder.use_scratch(length), length});
    builder.recv_reduce_run(sums.back(), pieces.in(BufferId::input, owner),
                            ranks.ranks_of_mates_before(), false);
  }
  ranks.leave_host(&builder);
  const Range result{BufferId::output, 0, shape.counts[shape.rank]};
  if (topology.grid.empty()) {
    add_reduce_scatter_ring(&builder, ranks.across, sums, result);
  } else {
    add_reduce_scatter_bml(&builder, ranks.across, topology, sums, result, shape.element_bytes);
  }
  return builder.build();
}

double reduce_scatter_hierarchical_seconds(const EstimateTerms& terms) {
  const StageTerms stages = stage_terms(terms);
  const double more_messages = (stages.across.num_ranks - 1.0) * (stages.within.num_ranks - 1.0);
  return reduce_scatter_direct_seconds(stages.within) + stages.within.overhead * more_messages +
         (stages.across.grid.empty() ? reduce_scatter_ring_seconds(stages.across)
                                     : reduce_scatter_bml_seconds(stages.across));
}

}  // namespace dmlcomm::schedule
