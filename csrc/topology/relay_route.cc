#include "topology/relay_route.h"

namespace dmlcomm::topology {
namespace {

// The digit of the `index`-th neighbour on `level`, counted from that of `to` where it is one.
uint32_t first_digit(const Grid& grid, uint32_t from, uint32_t to, uint32_t level, uint32_t index) {
  const uint32_t size = grid.size(level);
  const uint32_t own = grid.digit(from, level);
  const uint32_t wanted = grid.digit(to, level);
  const uint32_t begin = wanted == own ? 1 : (wanted + size - own) % size;
  // Distances from the own digit are 1 to size - 1.
  return (own + 1 + (begin - 1 + index) % (size - 1)) % size;
}

}  // namespace

std::vector<GridHop> relay_route(const Grid& grid, uint32_t from, uint32_t to, uint32_t first_level,
                                 uint32_t index) {
  DMLCOMM_CHECK(from != to && index < num_relay_routes(grid, first_level));
  uint32_t at = grid.with_digit(from, first_level, first_digit(grid, from, to, first_level, index));
  std::vector<GridHop> hops{{at, first_level}};
  // The first level comes last again, where the first hop was not to the digit that `to` has there.
  for (uint32_t i = 1; i <= grid.num_levels(); ++i) {
    const uint32_t level = (first_level + i) % grid.num_levels();
    const uint32_t next = grid.with_digit(at, level, grid.digit(to, level));
    if (next == at) continue;
    at = next;
    hops.push_back({at, level});
  }
  return hops;
}

}  // namespace dmlcomm::topology
