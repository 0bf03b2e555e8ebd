#include "topology/topology.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "topology/grid.h"
#include "topology/partition.h"

namespace dmlcomm::topology {
namespace {

TEST(TopologyTest, RanksAreKeptTogetherOverLoopbackWhereEveryCoreHasAsMany) {
  const auto kept = [](Topology topology, double ranks_per_core) {
    return on_shared_cores(std::move(topology), ranks_per_core).ranks_kept_together();
  };
  EXPECT_EQ(kept(single_host(4, false), 2), 2u);
  EXPECT_EQ(kept(single_host(4, false), 4), 4u);
  EXPECT_EQ(kept(single_host(4, false), 1), 1u);
  EXPECT_EQ(kept(single_host(4, false), 3), 1u);
  EXPECT_EQ(kept(single_host(5, false), 2.5), 1u);
  EXPECT_EQ(kept(single_host(4, true), 2), 1u);
  EXPECT_EQ(kept(flat_network({0, 0, 1, 1}, 1, 1e9, false), 2), 1u);
}

TEST(PartitionTest, PartsCoverEverythingInOrderAndDifferByOneUnitAtMost) {
  for (uint32_t parts : {1u, 2u, 3u, 7u, 16u}) {
    for (uint32_t element_bytes : {1u, 2u, 4u, 8u, 16u, 12u, 4096u}) {
      for (uint64_t count = 0; count < 5000; count += 1 + count / 3) {
        const Partition partition(count, parts, element_bytes);
        EXPECT_EQ(partition.begin(0), 0u);
        EXPECT_EQ(partition.begin(parts), count);
        uint64_t shortest = count, longest = 0;
        for (uint32_t part = 0; part < parts; ++part) {
          ASSERT_LE(partition.begin(part), partition.end(part));
          shortest = std::min(shortest, partition.length(part));
          longest = std::max(longest, partition.length(part));
        }
        // The last unit may be incomplete: two lines at most.
        EXPECT_LE((longest - shortest) * element_bytes,
                  std::max<uint64_t>(element_bytes, 2 * 3 * kCacheLineBytes));
        EXPECT_EQ(partition.length_between(0, parts), count);
      }
    }
  }
}

TEST(PartitionTest, LargePartsBeginAtCacheLines) {
  const Partition partition(100'003, 7, 4);
  for (uint32_t part = 0; part < 7; ++part) EXPECT_EQ(partition.begin(part) % 16, 0u);
}

TEST(PartitionTest, SmallPartsAreEvenToTheElement) {
  const Partition partition(10, 4, 4);
  EXPECT_EQ(partition.length(0), 3u);
  EXPECT_EQ(partition.length(1), 3u);
  EXPECT_EQ(partition.length(2), 2u);
  EXPECT_EQ(partition.length(3), 2u);
}

TEST(PartitionTest, FewerElementsThanPartsLeaveTheLastOnesEmpty) {
  const Partition partition(2, 5, 8);
  EXPECT_EQ(partition.length(1), 1u);
  EXPECT_EQ(partition.length(2), 0u);
  EXPECT_EQ(partition.length(4), 0u);
}

TEST(PartitionTest, DoesNotOverflow) {
  constexpr uint64_t kHuge = uint64_t{1} << 62;
  const Partition partition(kHuge, 1024, 1);
  EXPECT_EQ(partition.begin(512), kHuge / 2);
  EXPECT_EQ(partition.end(1023), kHuge);
}

TEST(TopologyTest, KnowsHostsAndLinks) {
  const Topology topology = flat_network({0, 0, 1}, 2, 10e9, true);
  EXPECT_EQ(topology.num_ranks(), 3u);
  EXPECT_FALSE(topology.is_one_host());
  EXPECT_EQ(topology.max_ranks_per_host(), 2u);
  EXPECT_EQ(&topology.link(0, 1), &topology.intra_host);
  EXPECT_EQ(&topology.link(0, 2), &topology.inter_host);
  EXPECT_DOUBLE_EQ(topology.inter_host.beta_s_per_byte, 0.8e-9);
  EXPECT_TRUE(single_host(4, false).is_one_host());
}

TEST(GridTest, HostsHaveOneDigitPerLevel) {
  const Grid grid({3, 2, 4});
  EXPECT_EQ(grid.num_hosts(), 24u);
  EXPECT_EQ(grid.digit(11, 0), 2u);  // 11 = 2 + 3 * (1 + 2 * 1)
  EXPECT_EQ(grid.digit(11, 1), 1u);
  EXPECT_EQ(grid.digit(11, 2), 1u);
  EXPECT_EQ(grid.with_digit(11, 0, 0), 9u);
  EXPECT_EQ(grid.with_digit(11, 2, 3), 23u);
}

TEST(GridTest, NeighboursDifferOnOneLevel) {
  const Grid grid({3, 2});
  EXPECT_TRUE(grid.are_neighbours(4, 5, 0));
  EXPECT_TRUE(grid.are_neighbours(4, 1, 1));
  EXPECT_FALSE(grid.are_neighbours(4, 1, 0));
  EXPECT_FALSE(grid.are_neighbours(4, 4, 0));
  EXPECT_FALSE(grid.are_neighbours(4, 2, 1));
  EXPECT_EQ(grid.lowest_difference(4, 2), 0u);
  EXPECT_EQ(grid.lowest_difference(4, 1), 1u);
  EXPECT_EQ(grid.lowest_difference(4, 4), 2u);
}

TEST(TopologyTest, RefusesGridsThatHostsAndRailsDoNotForm) {
  EXPECT_TRUE(validate(grid_network({3, 2, 1, 0}, {2, 2}, 1e9, true)).ok());
  EXPECT_TRUE(validate(grid_network({0, 0, 1, 1}, {2}, 1e9, true)).ok());
  EXPECT_FALSE(validate(grid_network({0, 1, 2}, {2, 2}, 1e9, true)).ok());
  EXPECT_FALSE(validate(grid_network({0, 1, 2, 4}, {2, 2}, 1e9, true)).ok());
  EXPECT_FALSE(validate(grid_network({0, 1}, {2, 1}, 1e9, true)).ok());
  Topology topology = grid_network({0, 1, 2, 3}, {2, 2}, 1e9, true);
  topology.num_rails = 1;
  EXPECT_FALSE(validate(topology).ok());
}

TEST(TopologyTest, RatesAreThoseOfEveryRailOrOfNone) {
  const Topology unknown = grid_network({0, 1, 2, 3}, {2, 2}, 1e9, true);
  for (const std::vector<uint64_t>& rates : {std::vector<uint64_t>{}, {200'000'000}}) {
    EXPECT_EQ(at_rates(unknown, rates).slowest_rail_beta(), unknown.slowest_rail_beta());
  }
  const Topology known = at_rates(unknown, {200'000'000, 50'000'000, 7});  // the third is a spare
  EXPECT_TRUE(validate(known).ok());
  EXPECT_DOUBLE_EQ(known.rail_beta(0), 40e-9);
  EXPECT_DOUBLE_EQ(known.rail_beta(1), 160e-9);
  EXPECT_DOUBLE_EQ(known.striped_beta(), 32e-9);
  EXPECT_DOUBLE_EQ(known.inter_host.beta_s_per_byte, 160e-9);
}

TEST(TopologyTest, RefusesWhatHasNoMeaning) {
  EXPECT_TRUE(validate(single_host(1, true)).ok());
  EXPECT_FALSE(validate(single_host(0, true)).ok());
  EXPECT_FALSE(validate(flat_network({0, 1}, 0, 1e9, true)).ok());
  EXPECT_FALSE(validate(flat_network({0, 1}, 1, -1e9, true)).ok());
}

}  // namespace
}  // namespace dmlcomm::topology
