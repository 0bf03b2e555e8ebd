// The network that a communicator runs on, as far as its options and the mesh tell.
#pragma once

#include <cstdint>
#include <vector>

#include "base/status.h"
#include "engine/communicator.h"
#include "topology/topology.h"
#include "transport/mesh.h"

namespace dmlcomm::engine {

// Whether the grid of the options, if there is one, fits the ranks and the rails.
Status check_grid(const CommunicatorOptions& options);

// By peer: the rail on which the two hosts are neighbours, or on which the way to it begins. Empty
// where there is no grid.
std::vector<uint8_t> first_rails(const CommunicatorOptions& options);

// The topology for which schedules are generated and priced. On a grid, a group has a grid if it
// covers all hosts; other groups are priced as a flat network of one rail.
topology::Topology make_topology(const transport::Mesh& mesh, const CommunicatorOptions& options);

}  // namespace dmlcomm::engine
