#include "schedule/price/traffic.h"

#include <algorithm>

#include "base/check.h"
#include "schedule/message_matching.h"
#include "topology/grid.h"

namespace dmlcomm::schedule {
namespace {

// A graph of messages and copies, which wait for each other.
class Waits {
 public:
  uint32_t add(bool is_message) {
    nodes_.push_back({is_message, 0, 0, {}});
    return static_cast<uint32_t>(nodes_.size() - 1);
  }

  void add_wait(uint32_t node, uint32_t for_node) {
    nodes_[for_node].successors.push_back(node);
    ++nodes_[node].waits_for;
  }

  // Messages of the longest path, by walking the nodes in an order in which each comes after those
  // that it waits for.
  uint64_t longest_chain() {
    std::vector<uint32_t> ready;
    for (uint32_t id = 0; id < nodes_.size(); ++id) {
      if (nodes_[id].waits_for == 0) ready.push_back(id);
    }
    uint64_t longest = 0;
    while (!ready.empty()) {
      const Node& node = nodes_[ready.back()];
      ready.pop_back();
      const uint64_t chain = node.chain_before + (node.is_message ? 1 : 0);
      longest = std::max(longest, chain);
      for (uint32_t successor : node.successors) {
        nodes_[successor].chain_before = std::max(nodes_[successor].chain_before, chain);
        if (--nodes_[successor].waits_for == 0) ready.push_back(successor);
      }
    }
    return longest;
  }

 private:
  struct Node {
    bool is_message;
    uint64_t chain_before;
    uint32_t waits_for;
    std::vector<uint32_t> successors;
  };
  std::vector<Node> nodes_;
};

void add_waits(const Schedule& schedule, const std::vector<uint32_t>& node_of_step, Waits* waits) {
  for (size_t i = 0; i < schedule.steps.size(); ++i) {
    for (uint32_t dep : schedule.steps[i].deps) {
      if (node_of_step[i] != node_of_step[dep]) waits->add_wait(node_of_step[i], node_of_step[dep]);
    }
  }
}

uint64_t count_sends(const Schedule& schedule) {
  return static_cast<uint64_t>(
      std::count_if(schedule.steps.begin(), schedule.steps.end(),
                    [](const Step& step) { return step.kind == StepKind::send; }));
}

// Adds a message's bytes to `rail_bytes` of the rail of this hop.
void add_bytes(const topology::Topology& topology, const Hop& hop, double bytes,
               std::vector<double>* rail_bytes) {
  if (hop.rail != kAnyRail) {
    (*rail_bytes)[hop.rail] += bytes;
    return;
  }
  const double whole = topology.striped_beta();
  for (uint32_t rail = 0; rail < topology.num_rails; ++rail) {
    (*rail_bytes)[rail] += bytes * whole / topology.rail_beta(rail);
  }
}

// Calls visit(hop, bytes) for what the sends of one rank put on NICs.
template <typename Visit>
void for_each_hop(const topology::Topology& topology, const Schedule& schedule, uint32_t rank,
                  uint32_t element_bytes, Visit visit) {
  for (const Step& step : schedule.steps) {
    if (step.kind != StepKind::send) continue;
    const double bytes = static_cast<double>(step.range.length) * element_bytes;
    for (const Hop& hop : route(topology, rank, step.peer, step.rail)) visit(hop, bytes);
  }
}

// A message is one node of its two ends.
uint64_t count_rounds(const std::vector<Schedule>& schedules) {
  const Matches matches = *match_messages(schedules);
  Waits waits;
  std::vector<std::vector<uint32_t>> nodes(schedules.size());
  for (size_t rank = 0; rank < schedules.size(); ++rank) {
    for (const Step& step : schedules[rank].steps) {
      nodes[rank].push_back(receives(step.kind) ? 0 : waits.add(step.kind == StepKind::send));
    }
  }
  for (size_t rank = 0; rank < schedules.size(); ++rank) {
    for (size_t i = 0; i < nodes[rank].size(); ++i) {
      const auto& [peer, send] = matches[rank][i];
      if (receives(schedules[rank].steps[i].kind)) nodes[rank][i] = nodes[peer][send];
    }
  }
  for (size_t rank = 0; rank < schedules.size(); ++rank) {
    add_waits(schedules[rank], nodes[rank], &waits);
  }
  return waits.longest_chain();
}

}  // namespace

std::vector<Hop> route(const topology::Topology& topology, uint32_t sender, uint32_t receiver,
                       uint8_t rail) {
  uint32_t host = topology.host_of_rank[sender];
  const uint32_t target = topology.host_of_rank[receiver];
  if (host == target) return {};
  if (topology.grid.empty()) return {{host, target, kAnyRail}};
  const topology::Grid grid(topology.grid);
  if (rail != kAnyRail) {
    DMLCOMM_CHECK(grid.are_neighbours(host, target, rail));
    return {{host, target, rail}};
  }
  std::vector<Hop> hops;
  while (host != target) {
    const uint32_t level = grid.lowest_difference(host, target);
    const uint32_t next = grid.with_digit(host, level, grid.digit(target, level));
    hops.push_back({host, next, static_cast<uint8_t>(level)});
    host = next;
  }
  return hops;
}

Traffic count_traffic(const topology::Topology& topology, const std::vector<Schedule>& schedules,
                      uint32_t element_bytes) {
  DMLCOMM_CHECK(schedules.size() == topology.num_ranks());
  Traffic traffic;
  traffic.rounds = count_rounds(schedules);
  std::vector<std::vector<double>> of_host(topology.num_hosts(),
                                           std::vector<double>(topology.num_rails, 0));
  for (uint32_t rank = 0; rank < schedules.size(); ++rank) {
    traffic.messages = std::max(traffic.messages, count_sends(schedules[rank]));
    for_each_hop(topology, schedules[rank], rank, element_bytes, [&](const Hop& hop, double bytes) {
      add_bytes(topology, hop, bytes, &of_host[hop.from]);
    });
  }
  traffic.rail_bytes.assign(topology.num_rails, 0);
  for (const std::vector<double>& bytes : of_host) {
    for (uint32_t rail = 0; rail < topology.num_rails; ++rail) {
      traffic.rail_bytes[rail] = std::max(traffic.rail_bytes[rail], bytes[rail]);
    }
  }
  return traffic;
}

// The cost of this rank's messages for relaying hosts is the cost of others' messages for this
// rank's host.
Traffic count_traffic_in_lockstep(const topology::Topology& topology, const Schedule& schedule,
                                  uint32_t rank, uint32_t element_bytes) {
  Traffic traffic;
  traffic.messages = count_sends(schedule);
  traffic.rail_bytes.assign(topology.num_rails, 0);
  const double sharers = topology.max_ranks_per_host();
  for_each_hop(topology, schedule, rank, element_bytes, [&](const Hop& hop, double bytes) {
    add_bytes(topology, hop, sharers * bytes, &traffic.rail_bytes);
  });
  Waits waits;
  std::vector<uint32_t> nodes(schedule.steps.size()), sends;
  for (size_t i = 0; i < nodes.size(); ++i) {
    const StepKind kind = schedule.steps[i].kind;
    if (kind == StepKind::copy) nodes[i] = waits.add(false);
    if (kind == StepKind::send) sends.push_back(nodes[i] = waits.add(true));
  }
  size_t receipt = 0;
  for (size_t i = 0; i < nodes.size(); ++i) {
    if (receives(schedule.steps[i].kind)) nodes[i] = sends.at(receipt++);
  }
  add_waits(schedule, nodes, &waits);
  traffic.rounds = waits.longest_chain();
  return traffic;
}

}  // namespace dmlcomm::schedule
