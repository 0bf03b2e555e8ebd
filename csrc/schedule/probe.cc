#include "schedule/probe.h"

#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

#include "schedule/algorithms/group.h"
#include "topology/grid.h"

namespace dmlcomm::schedule {
namespace {

// The ranks of the hosts on one rail, from which messages go around.
Group group_on_rail(const topology::Topology& topology, uint32_t rank, uint32_t rail) {
  Group across = group_across_hosts(topology, rank);
  if (topology.grid.empty()) return across;
  const topology::Grid grid(topology.grid);
  const uint32_t host = topology.host_of_rank[rank];
  Group group{grid.digit(host, rail), {}};
  for (uint32_t digit = 0; digit < grid.size(rail); ++digit) {
    group.ranks.push_back(across.ranks[grid.with_digit(host, rail, digit)]);
  }
  return group;
}

}  // namespace

bool can_probe(const topology::Topology& topology) {
  return !topology.is_one_host() &&
         topology.num_hosts() * topology.max_ranks_per_host() == topology.num_ranks();
}

void add_probe(const OpShape& shape, const topology::Topology& topology, Schedule* schedule) {
  const uint64_t elements = (kProbeBytes + shape.element_bytes - 1) / shape.element_bytes;
  const auto use_scratch = [&] {
    const uint64_t begin = schedule->scratch_elements;
    schedule->scratch_elements += elements;
    return Range{BufferId::scratch, begin, elements};
  };
  std::vector<Step> steps;
  std::vector<uint16_t> streams;
  const Range sent = use_scratch();
  for (uint32_t rail = 0; rail < topology.num_rails; ++rail) {
    const Group group = group_on_rail(topology, shape.rank, rail);
    if (group.size() == 1) continue;
    const auto number = static_cast<uint8_t>(rail);
    steps.push_back({StepKind::send, number, group.next(), sent, {}, {}, false});
    steps.push_back({StepKind::recv, number, group.previous(), use_scratch(), {}, {}, false});
    streams.insert(streams.end(), 2, schedule->num_streams++);
  }
  const auto num_probing = static_cast<uint32_t>(steps.size());
  std::vector<uint32_t> probing(num_probing);
  std::iota(probing.begin(), probing.end(), 0u);
  for (Step& step : schedule->steps) {
    for (uint32_t& dep : step.deps) dep += num_probing;
    if (step.deps.empty()) step.deps = probing;
    steps.push_back(std::move(step));
  }
  streams.insert(streams.end(), schedule->stream_of.begin(), schedule->stream_of.end());
  schedule->steps = std::move(steps);
  schedule->stream_of = std::move(streams);
}

}  // namespace dmlcomm::schedule
