// broadcast, scatter and all-gather: the root deals out parts, and the others exchange them.
//
// Source: van de Geijn's broadcast (Thakur, Rabenseifner, Gropp 2005), with direct
// exchange in both phases, and without the root in the second: it has everything. Vocabulary: the
// *members* are the M = N - 1 ranks other than the root, member i being rank root + 1 + i (mod N);
// the vector is cut into M *parts*.
//
// Steps: (1) the root sends part i to member i; (2) each member sends its part to the other
// members. On the wire: the root sends S bytes, a member S (M - 1) / M, both about the
// least possible; two rounds.
//
// Example, N = 3, root 0: 0 sends part 0 to 1 and part 1 to 2; 1 and 2 exchange their parts.
#include "schedule/algorithms/generators.h"

#include <algorithm>

namespace dmlcomm::schedule {

Schedule broadcast_scatter_allgather(const OpShape& shape, const topology::Topology&) {
  ScheduleBuilder builder(shape);
  const uint32_t num_members = shape.num_ranks - 1;
  if (num_members == 0) return builder.build();
  const Parts part({BufferId::output, 0, shape.counts[0]}, num_members, shape.element_bytes);
  const auto rank_of = [&](uint32_t member) { return (shape.root + 1 + member) % shape.num_ranks; };

  if (shape.rank == shape.root) {
    for (uint32_t i = 0; i < num_members; ++i) builder.send(part(i), rank_of(i));
    return builder.build();
  }
  const uint32_t member = (shape.rank + num_members - shape.root) % shape.num_ranks;
  builder.recv(part(member), shape.root);
  for (uint32_t i : ranks_after(member, num_members)) builder.send(part(member), rank_of(i));
  for (uint32_t i : ranks_before(member, num_members)) builder.recv(part(i), rank_of(i));
  return builder.build();
}

double broadcast_scatter_allgather_seconds(const EstimateTerms& terms) {
  const double members = std::max(1.0, terms.num_ranks - 1.0);
  const double part = terms.bytes / members;
  const double exchanged = terms.bytes - part;
  const double scatter = terms.latency_of(1, members) + terms.spread(terms.bytes, part);
  if (members == 1) return scatter;
  return scatter + terms.latency(members - 1) + terms.all(exchanged, exchanged);
}

}  // namespace dmlcomm::schedule
