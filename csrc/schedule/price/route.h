// Route: the NICs that a message between two ranks passes.
#pragma once

#include <cstdint>
#include <vector>

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

}  // namespace dmlcomm::schedule
