// Long vectors over loopback: right in blocks of every length, and few blocks at a time.
#include <gtest/gtest.h>

#include <vector>

#include "schedule/algorithms/blocks.h"
#include "schedule/algorithms/generators.h"
#include "schedule/verify/verifier.h"
#include "tests/schedule_shapes.h"
#include "tests/schedule_topologies.h"

namespace dmlcomm::schedule {
namespace {

constexpr uint32_t kElementBytes = 65'344;  // two are one rank's part of a block

std::vector<OpShape> shapes_of_blocks(uint32_t num_ranks, uint64_t count) {
  auto shapes = even_shapes(OpKind::all_reduce, num_ranks, 0, count);
  for (OpShape& shape : shapes) shape.element_bytes = kElementBytes;
  return shapes;
}

// With blocks of 2 elements for each of `num_parts` parts.
template <typename Generate>
void expect_right_for_every_rest(const topology::Topology& topology, uint32_t num_parts,
                                 Generate generate) {
  const uint32_t num_ranks = topology.num_ranks();
  for (uint64_t count = 8 * num_parts; count <= 10 * num_parts; ++count) {
    const auto shapes = shapes_of_blocks(num_ranks, count);
    ASSERT_EQ(block_elements(shapes[0], topology, num_parts), 2 * num_parts);
    std::vector<Schedule> schedules;
    for (const OpShape& shape : shapes) schedules.push_back(generate(shape, topology));
    const Status status = verify(shapes, schedules);
    ASSERT_TRUE(status.ok()) << status.message() << ", N = " << num_ranks << ", " << count;
  }
}

TEST(BlocksTest, DirectIsRightForEveryRest) {
  for (uint32_t num_ranks = 2; num_ranks <= 9; ++num_ranks) {
    expect_right_for_every_rest(topology::single_host(num_ranks, false), num_ranks,
                                all_reduce_direct);
  }
}

TEST(BlocksTest, LeadersIsRightForEveryRest) {
  for (uint32_t per_core = 2; per_core <= 4; ++per_core) {
    for (uint32_t num_cores = 1; num_cores <= 4; ++num_cores) {
      expect_right_for_every_rest(loopback_on_cores(per_core * num_cores, per_core), num_cores,
                                  all_reduce_leaders);
    }
  }
}

// Steps that must be complete before step `id`.
std::vector<bool> all_before(const Schedule& schedule, uint32_t id) {
  std::vector<bool> before(schedule.steps.size());
  before[id] = true;
  for (uint32_t step = id + 1; step-- > 0;) {
    if (!before[step]) continue;
    for (uint32_t dep : schedule.steps[step].deps) before[dep] = true;
  }
  return before;
}

TEST(BlocksTest, FollowEachOtherInTwoRows) {
  const uint32_t num_ranks = 4;
  const uint64_t block = 2 * num_ranks, num_blocks = 7;
  for (const OpShape& shape : shapes_of_blocks(num_ranks, num_blocks * block)) {
    const Schedule schedule = all_reduce_direct(shape, topology::single_host(num_ranks, false));
    for (uint32_t id = 0; id < schedule.steps.size(); ++id) {
      const uint64_t own = schedule.steps[id].range.offset / block;
      const auto before = all_before(schedule, id);
      for (uint32_t other = 0; other < schedule.steps.size(); ++other) {
        const uint64_t earlier = schedule.steps[other].range.offset / block;
        const bool waits = earlier < own && (own - earlier) % kBlocksAtATime == 0;
        // In a run the last step stands for all of them.
        const Step& step = schedule.steps[other];
        const bool is_inside_run = step.kind == StepKind::recv_reduce && !step.finalizes;
        if (earlier == own || is_inside_run) continue;
        EXPECT_EQ(before[other], waits) << "step " << other << " before step " << id;
      }
    }
  }
}

TEST(BlocksTest, OnlyLongVectorsOverLoopbackAreCut) {
  const OpShape shape = shapes_of_blocks(4, 32)[0];
  EXPECT_GT(block_elements(shape, topology::single_host(4, false), 4), 0u);
  EXPECT_EQ(block_elements(shape, topology::single_host(4, true), 4), 0u);
  EXPECT_EQ(block_elements(shape, topology::flat_network({0, 1, 2, 3}, 1, 1e9, false), 4), 0u);
  EXPECT_EQ(block_elements(shapes_of_blocks(4, 31)[0], topology::single_host(4, false), 4), 0u);
  EXPECT_EQ(block_elements(shapes_of_blocks(1, 1000)[0], topology::single_host(1, false), 1), 0u);
}

TEST(BlocksTest, OfVeryLongVectorsAreLonger) {
  const topology::Topology loopback = topology::single_host(4, false);
  EXPECT_EQ(block_elements(shapes_of_blocks(4, 1023 * 8)[0], loopback, 4), 8u);
  EXPECT_EQ(block_elements(shapes_of_blocks(4, 1024 * 8)[0], loopback, 4), 16u);
  EXPECT_EQ(block_elements(shapes_of_blocks(4, 5 * 1024 * 8)[0], loopback, 4), 48u);
}

}  // namespace
}  // namespace dmlcomm::schedule
