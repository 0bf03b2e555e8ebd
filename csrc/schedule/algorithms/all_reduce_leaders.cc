// all_reduce, leaders: through the first of the ranks that share a core.
//
// Source: Mamidala, Kumar, De, Panda, "MPI Collectives on Modern Multicore Clusters", 2008, with a
// core in the place of a node. For ranks that talk over loopback, and are kept on cores: a packet
// that is read on the core that wrote it costs half as much. Vocabulary: m ranks share each of G
// cores; the first of them is their *leader*, the others are its *helpers*. The vector is cut into
// G *parts*; the leader on core g owns part g.
//
// Steps: (1) helpers send the vector to their leader, who combines it with its own; (2) the leaders
// do a direct all_reduce (all_reduce_direct.cc); (3) each passes every finished part on to its
// helpers. All cores have the same to do at any time, though leaders do more than helpers. On the
// wire: 2 (N - 1) S bytes in all, as few as any other way, of which 2 (N - G) S stay on their core,
// where it would be (m - 1) / (N - 1) of them. Long vectors go block by block (blocks.h). All ranks
// have identical bits.
//
// Example, N = 4 on two cores: 1 sends to 0, and 3 to 2. 0 sends part 1 of the sum of its core to
// 2, which sends part 0; each adds, and sends the result to the other leader and to its own helper,
// who gets the other part as well, when it comes.
#include "schedule/algorithms/generators.h"

#include "schedule/algorithms/blocks.h"

namespace dmlcomm::schedule {
namespace {

Schedule through_leaders(const OpShape& shape, uint32_t together) {
  const uint32_t num_cores = shape.num_ranks / together;
  const uint32_t core = shape.rank / together;
  const uint32_t leader = core * together;
  const Range all{BufferId::output, 0, shape.counts[0]};
  const Parts part(all, num_cores, shape.element_bytes);
  const auto after = ranks_after(core, num_cores);
  const auto before = ranks_before(core, num_cores);

  ScheduleBuilder builder(shape);
  if (shape.rank != leader) {
    builder.send(all, leader);
    builder.recv(part(core), leader);
    for (uint32_t other : before) builder.recv(part(other), leader);
    return builder.build();
  }
  std::vector<uint32_t> helpers, leaders_before;
  for (uint32_t i = 1; i < together; ++i) helpers.push_back(leader + i);
  for (uint32_t other : before) leaders_before.push_back(other * together);
  builder.recv_reduce_run(all, all, helpers, num_cores == 1);
  for (uint32_t other : after) builder.send(part(other), other * together);
  builder.recv_reduce_run(part(core), part(core), leaders_before);
  for (uint32_t other : after) builder.send(part(core), other * together);
  for (uint32_t helper : helpers) builder.send(part(core), helper);
  for (uint32_t other : before) {
    builder.recv(part(other), other * together);
    for (uint32_t helper : helpers) builder.send(part(other), helper);
  }
  return builder.build();
}

}  // namespace

Schedule all_reduce_leaders(const OpShape& shape, const topology::Topology& topology) {
  const uint32_t together = topology.ranks_kept_together();
  return in_blocks(shape, topology, shape.num_ranks / together,
                   [together](const OpShape& part) { return through_leaders(part, together); });
}

// The cores are never idle, so their work adds up. As elsewhere, what ranks combine is divided
// among those of a core.
double all_reduce_leaders_seconds(const EstimateTerms& terms) {
  const double together = terms.topology->ranks_kept_together();
  const double num_cores = terms.num_ranks / together;
  const double helpers = together - 1;
  const double moved = (num_cores - 1) / num_cores;  // by each leader, of the vector
  double latency = terms.latency_of(terms.num_ranks - num_cores) +
                   terms.latency_of(num_cores, helpers * num_cores);
  if (num_cores > 1) latency += 2 * terms.latency_of(num_cores, num_cores - 1);
  return latency + terms.bytes * terms.beta_core * (2 * helpers + 4 * moved) +
         terms.bytes * terms.gamma * (helpers + moved) / together;
}

}  // namespace dmlcomm::schedule
