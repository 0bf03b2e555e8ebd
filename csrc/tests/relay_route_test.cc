// Routes over a grid: every pair of hosts of several grids.

#include "topology/relay_route.h"

#include <gtest/gtest.h>

#include <set>
#include <vector>

namespace dmlcomm::topology {
namespace {

class RelayRouteTest : public testing::TestWithParam<std::vector<uint32_t>> {
 protected:
  // `visit(from, to, level, index, route)` for every route there is.
  template <typename Visit>
  void for_each_route(Visit visit) const {
    for (uint32_t from = 0; from < grid_.num_hosts(); ++from) {
      for (uint32_t to = 0; to < grid_.num_hosts(); ++to) {
        if (from == to) continue;
        for (uint32_t level = 0; level < grid_.num_levels(); ++level) {
          for (uint32_t i = 0; i < num_relay_routes(grid_, level); ++i) {
            visit(from, to, level, i, relay_route(grid_, from, to, level, i));
          }
        }
      }
    }
  }

  const Grid grid_{GetParam()};
};

TEST_P(RelayRouteTest, GoesFromNeighbourToNeighbourAndEndsThere) {
  for_each_route(
      [&](uint32_t from, uint32_t to, uint32_t level, uint32_t, const std::vector<GridHop>& route) {
        ASSERT_FALSE(route.empty());
        EXPECT_EQ(route.front().level, level);
        EXPECT_EQ(route.back().host, to);
        std::set<uint32_t> visited{from};
        uint32_t at = from;
        for (const GridHop& hop : route) {
          EXPECT_TRUE(grid_.are_neighbours(at, hop.host, hop.level)) << at << " -> " << hop.host;
          EXPECT_TRUE(visited.insert(hop.host).second) << "no host twice";
          at = hop.host;
        }
        EXPECT_LE(route.size(), grid_.num_levels() + 1);
      });
}

TEST_P(RelayRouteTest, TheFirstOnTheLowestDifferingLevelCorrectsOneDigitPerHop) {
  for (uint32_t from = 0; from < grid_.num_hosts(); ++from) {
    for (uint32_t to = 0; to < grid_.num_hosts(); ++to) {
      if (from == to) continue;
      const auto route = relay_route(grid_, from, to, grid_.lowest_difference(from, to), 0);
      for (size_t i = 1; i < route.size(); ++i) {
        EXPECT_LT(route[i - 1].level, route[i].level) << "the lowest level first";
      }
    }
  }
}

TEST_P(RelayRouteTest, ADetourAvoidsTheSwitchOfTheNeighbours) {
  for_each_route(
      [&](uint32_t from, uint32_t to, uint32_t level, uint32_t, const std::vector<GridHop>& route) {
        const uint32_t direct = grid_.lowest_difference(from, to);
        if (level == direct || !grid_.are_neighbours(from, to, direct)) return;
        EXPECT_EQ(route.size(), 3u);
        EXPECT_EQ(route.front().level, level);
        EXPECT_EQ(route.back().level, level) << "the cable of either end may be the dead one";
      });
}

TEST_P(RelayRouteTest, RoutesOfOneLevelBeginAtDifferentNeighbours) {
  std::set<std::vector<uint32_t>> seen;
  for_each_route(
      [&](uint32_t from, uint32_t to, uint32_t level, uint32_t, const std::vector<GridHop>& route) {
        EXPECT_TRUE(seen.insert({from, to, level, route.front().host}).second);
      });
}

TEST_P(RelayRouteTest, TheFirstRoutesOfTheLevelsMeetInNoHostInBetween) {
  for (uint32_t from = 0; from < grid_.num_hosts(); ++from) {
    for (uint32_t to = 0; to < grid_.num_hosts(); ++to) {
      if (from == to) continue;
      std::set<uint32_t> between;
      for (uint32_t level = 0; level < grid_.num_levels(); ++level) {
        auto route = relay_route(grid_, from, to, level, 0);
        route.pop_back();
        for (const GridHop& hop : route) {
          EXPECT_TRUE(between.insert(hop.host).second)
              << from << " to " << to << " by " << hop.host;
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Grids, RelayRouteTest,
                         testing::Values(std::vector<uint32_t>{2, 2}, std::vector<uint32_t>{3, 3},
                                         std::vector<uint32_t>{3, 2},
                                         std::vector<uint32_t>{2, 2, 2},
                                         std::vector<uint32_t>{4, 3, 2},
                                         std::vector<uint32_t>{3, 3, 3}));

}  // namespace
}  // namespace dmlcomm::topology
