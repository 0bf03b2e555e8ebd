// What a communicator concludes from its options about the network it runs on.
#include "engine/job_topology.h"

#include <gtest/gtest.h>

#include <utility>
#include <vector>

namespace dmlcomm::engine {
namespace {

CommunicatorOptions on_grid(std::vector<uint32_t> grid, std::vector<uint32_t> host_of_rank,
                            int rank, size_t num_rails = 0) {
  CommunicatorOptions options;
  options.rails.resize(num_rails);
  options.rank = rank;
  options.num_ranks = static_cast<int>(host_of_rank.size());
  options.grid = std::move(grid);
  options.host_of_rank = std::move(host_of_rank);
  return options;
}

TEST(JobTopologyTest, AGridMayHaveFewerLevelsThanThereAreRails) {
  EXPECT_TRUE(check_grid(on_grid({3}, {0, 1, 2}, 0, 2)).ok());
  EXPECT_TRUE(check_grid(on_grid({2, 2}, {0, 1, 2, 3}, 0, 3)).ok());
  EXPECT_EQ(check_grid(on_grid({2, 2}, {0, 1, 2, 3}, 0, 1)).code(), StatusCode::invalid_argument);
  EXPECT_EQ(check_grid(on_grid({2}, {0, 1, 2}, 0, 2)).code(), StatusCode::invalid_argument);
}

// Rails beyond the levels are spares: no connection begins with them.
TEST(JobTopologyTest, OnAGridConnectionsBeginOnTheLevelOfTheFirstDifference) {
  const std::vector<uint8_t> row = first_rails(on_grid({3}, {2, 0, 1}, 0));
  EXPECT_EQ(row[1], 0);
  EXPECT_EQ(row[2], 0);
  const std::vector<uint8_t> square = first_rails(on_grid({2, 2}, {0, 1, 2, 3}, 1));
  EXPECT_EQ(square[0], 0);
  EXPECT_EQ(square[2], 0);
  EXPECT_EQ(square[3], 1);
}

}  // namespace
}  // namespace dmlcomm::engine
