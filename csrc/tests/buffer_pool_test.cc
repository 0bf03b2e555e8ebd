// Buffers that come back, and memory that goes when it is not needed any more.
#include "memory/buffer_pool.h"

#include <gtest/gtest.h>

#include <vector>

namespace dmlcomm {
namespace {

constexpr size_t kRounds = 20;

std::vector<BufferPool::Buffer> take(BufferPool& pool, size_t count) {
  std::vector<BufferPool::Buffer> buffers;
  for (size_t i = 0; i < count; ++i) {
    buffers.push_back(pool.take());
    buffers.back()[0] = buffers.back()[pool.bytes() - 1] = static_cast<std::byte>(i);
  }
  return buffers;
}

// Small ones, and slabs of several and of one.
class BufferPoolTest : public testing::TestWithParam<size_t> {};

TEST_P(BufferPoolTest, MemoryThatIsNotNeededAnyMoreGoes) {
  BufferPool pool(GetParam(), true);
  const auto kept = take(pool, 1);
  const size_t slab_bytes = pool.held_bytes();
  (void)take(pool, 200);
  const size_t most = pool.held_bytes();
  EXPECT_GE(most, 201 * pool.bytes());
  EXPECT_EQ(take(pool, 100).size(), 100u);
  EXPECT_EQ(pool.held_bytes(), most) << "it may be needed again";
  for (size_t i = 0; i < kRounds * 200; ++i) (void)take(pool, 1);
  EXPECT_LE(pool.held_bytes(), 2 * slab_bytes);
  EXPECT_EQ(kept[0][0], std::byte{0});
  EXPECT_EQ(kept[0][pool.bytes() - 1], std::byte{0});
}

TEST_P(BufferPoolTest, WhatIsNeededAgainAndAgainStays) {
  BufferPool pool(GetParam(), true);
  (void)take(pool, 40);
  const size_t held = pool.held_bytes();
  for (size_t i = 0; i < kRounds; ++i) {
    const auto buffers = take(pool, 40);
    for (size_t b = 0; b < buffers.size(); ++b) {
      EXPECT_EQ(buffers[b][pool.bytes() - 1], static_cast<std::byte>(b));
    }
    EXPECT_EQ(pool.held_bytes(), held);
  }
}

INSTANTIATE_TEST_SUITE_P(Sizes, BufferPoolTest, testing::Values(100, 256 * 1024, 3 << 20));

}  // namespace
}  // namespace dmlcomm
