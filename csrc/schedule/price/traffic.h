// Traffic of an algorithm, counted in its schedules: messages, rounds, and bytes on NICs; and the
// NICs that a message passes.
#pragma once

#include <cstdint>
#include <vector>

#include "schedule/schedule.h"
#include "topology/topology.h"

namespace dmlcomm::schedule {

// Who passes a message on to whom, on which rail, counted by host.
struct Hop {
  uint32_t from, to;
  uint8_t rail;  // kAnyRail: striped over all of them
};

// Empty inside a host. On a flat network a message is striped over all rails. On a grid it goes
// through the rail that it names, to a neighbour; one that names none (kAnyRail) is relayed, lowest
// level first.
std::vector<Hop> route(const topology::Topology& topology, uint32_t sender, uint32_t receiver,
                       uint8_t rail);

struct Traffic {
  // Sent by the rank that sends most of them, inside its host included.
  uint64_t messages = 0;
  // The longest chain of messages of which each has to wait for the one before.
  uint64_t rounds = 0;
  // By rail: the bytes of the host that sends most there, including those that it relays.
  // Messages that are striped count on each rail by its speed.
  std::vector<double> rail_bytes;
};

// `schedules` holds one per rank of the topology and must verify.
Traffic count_traffic(const topology::Topology& topology, const std::vector<Schedule>& schedules,
                      uint32_t element_bytes);

// The same from the schedule of one rank, for algorithms in which all ranks do the same at the same
// time, as simulate_in_lockstep does.
Traffic count_traffic_in_lockstep(const topology::Topology& topology, const Schedule& schedule,
                                  uint32_t rank, uint32_t element_bytes);

}  // namespace dmlcomm::schedule
