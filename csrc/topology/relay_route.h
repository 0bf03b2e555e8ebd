// Routes between hosts of a grid that share no switch, through the hosts in between: each hop goes
// to a neighbour (grid.h). Pure.
//
// From one host to another there is a family of routes per level that the first hop takes, and the
// routes of different families meet in no host in between ("BCube", SIGCOMM 2009): no single dead
// cable or host is on two of them. Inside a family routes differ in their first hop.
//
// Example, sizes {3, 3}: from host 0 (digits 0, 0) to host 4 (1, 1): the first route of level 0 is
// 0 -> 1 -> 4, that of level 1 is 0 -> 3 -> 4. From host 0 to its neighbour 1, without the switch
// that joins them: 0 -> 3 -> 4 -> 1 and 0 -> 6 -> 7 -> 1, both of level 1.
#pragma once

#include <cstdint>
#include <vector>

#include "topology/grid.h"

namespace dmlcomm::topology {

// One step of a route: to `host`, over the switch of `level`.
struct GridHop {
  uint32_t host;
  uint32_t level;
  bool operator==(const GridHop&) const = default;
};

// Routes of one family: one for each neighbour on `first_level`.
inline uint32_t num_relay_routes(const Grid& grid, uint32_t first_level) {
  return grid.size(first_level) - 1;
}

// Route `index` of those from `from` to another host `to` that begin on `first_level`; the last hop
// is `to`. Route 0 is a shortest one of its family. Each other level on which the hosts differ is
// crossed once, the next higher one first, behind the last level the lowest.
std::vector<GridHop> relay_route(const Grid& grid, uint32_t from, uint32_t to, uint32_t first_level,
                                 uint32_t index);

}  // namespace dmlcomm::topology
