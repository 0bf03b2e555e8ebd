// broadcast, hierarchical: once through the network, and through shared memory inside hosts.
//
// Source: folklore; the scatter and all_gather of van de Geijn, with a broadcast between hosts in
// the middle. Several hosts with m ranks each; stages in hierarchy.h.
//
// Steps: (1) the root scatters m parts over the ranks of its host; (2) each of them passes its part
// along a chain of the ranks in the same place on the other hosts; (3) inside each host every rank
// sends its part to the others. Through the NIC of a host pass S bytes, out and in.
//
// Example, 2 hosts of 2 ranks, root 0: 0 sends half 1 to 1; 0 and 1 send their halves to 2 and 3;
// 2 and 3 exchange them, and 0 sends half 0 to 1.
#include "schedule/algorithms/generators.h"

#include <algorithm>

#include "schedule/algorithms/hierarchy.h"

namespace dmlcomm::schedule {
namespace {

// The member of `across` on the root's host.
uint32_t member_on_host_of(const Group& across, const topology::Topology& topology, uint32_t root) {
  const auto it = std::find_if(across.ranks.begin(), across.ranks.end(),
                               [&](uint32_t rank) { return topology.same_host(rank, root); });
  return static_cast<uint32_t>(it - across.ranks.begin());
}

}  // namespace

Schedule broadcast_hierarchical(const OpShape& shape, const topology::Topology& topology) {
  const Hierarchy ranks(topology, shape.rank);
  const bool is_root = shape.rank == shape.root;
  const auto part = [&](uint32_t member) { return ranks.part_of_output(shape, member); };
  const Range own = part(ranks.within.index);

  ScheduleBuilder builder(shape);
  ranks.enter_host(&builder);
  if (is_root) {
    for (uint32_t mate : ranks.mates_after()) builder.send(part(mate), ranks.within.ranks[mate]);
  } else if (topology.same_host(shape.rank, shape.root)) {
    builder.recv(own, shape.root);
  }
  ranks.leave_host(&builder);
  add_broadcast_chain(&builder, ranks.across, member_on_host_of(ranks.across, topology, shape.root),
                      own, shape.element_bytes);
  ranks.enter_host(&builder);
  for (uint32_t mate : ranks.mates_after()) {
    if (ranks.within.ranks[mate] != shape.root) builder.send(own, ranks.within.ranks[mate]);
  }
  if (is_root) return builder.build();
  for (uint32_t mate : ranks.mates_before()) builder.recv(part(mate), ranks.within.ranks[mate]);
  return builder.build();
}

double broadcast_hierarchical_seconds(const EstimateTerms& terms) {
  const StageTerms stages = stage_terms(terms);
  const double parts = stages.within.num_ranks;
  const double part = terms.bytes / parts;
  const double scatter =
      stages.within.latency_of(1, parts - 1) + stages.within.all(terms.bytes - part, part);
  return scatter + broadcast_chain_seconds(stages.across) +
         all_gather_direct_seconds(stages.within);
}

}  // namespace dmlcomm::schedule
