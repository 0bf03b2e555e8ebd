// SharedArena: what two mappings of it show, and that memory which was freed is used again.

#include "memory/shared_arena.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <random>
#include <vector>

#include "base/unique_fd.h"
#include "memory/huge_pages.h"
#include "memory/seal.h"

namespace dmlcomm::tests {
namespace {

uint64_t address_of(const std::byte* memory) { return reinterpret_cast<uintptr_t>(memory); }

size_t used_bytes(const SharedArena& arena) {
  struct stat info;
  EXPECT_EQ(fstat(arena.fd(), &info), 0);
  return static_cast<size_t>(info.st_blocks) * 512;
}

class SharedArenaTest : public testing::Test {
 protected:
  void SetUp() override {
    arena_ = SharedArena::make();
    if (arena_ == nullptr) GTEST_SKIP() << "this kernel gives no arena";
  }
  SharedArena* arena_ = nullptr;
};

TEST_F(SharedArenaTest, ThereIsOneOfAProcess) {
  EXPECT_EQ(SharedArena::make(), arena_);
  EXPECT_EQ(SharedArena::existing(), arena_);
  EXPECT_EQ(arena_->address() % kHugePageBytes, 0U);
}

TEST_F(SharedArenaTest, AnotherMappingShowsTheSameBytes) {
  auto mapped = MappedArena::map(arena_->fd(), arena_->address(), arena_->bytes());
  ASSERT_TRUE(mapped.ok()) << mapped.status();
  for (const size_t bytes : {size_t{1}, size_t{4096}, 3 * kHugePageBytes + 5}) {
    const HugeMemory memory = allocate_huge(bytes, true);
    std::byte* const seen = mapped->find(address_of(memory.get()), bytes);
    ASSERT_NE(seen, nullptr);
    ASSERT_NE(seen, memory.get());
    std::memset(memory.get(), 5, bytes);
    EXPECT_EQ(std::memcmp(seen, memory.get(), bytes), 0);
    std::memset(seen, 6, bytes);
    EXPECT_EQ(memory[bytes - 1], std::byte{6});
  }
}

TEST_F(SharedArenaTest, OnlyWhatLiesInItIsFound) {
  const uint64_t begin = arena_->address();
  const size_t bytes = arena_->bytes();
  auto mapped = MappedArena::map(arena_->fd(), begin, bytes);
  ASSERT_TRUE(mapped.ok()) << mapped.status();
  EXPECT_NE(mapped->find(begin, bytes), nullptr);
  EXPECT_EQ(mapped->find(begin - 1, 1), nullptr);
  EXPECT_EQ(mapped->find(begin, bytes + 1), nullptr);
  EXPECT_EQ(mapped->find(begin + 1, bytes), nullptr);
  EXPECT_EQ(mapped->find(begin + bytes, 1), nullptr);
  EXPECT_EQ(mapped->find(begin + 8, SIZE_MAX), nullptr);
  EXPECT_EQ(mapped->find(UINT64_MAX, 2), nullptr);
  EXPECT_EQ(MappedArena().find(begin, 1), nullptr);
}

TEST_F(SharedArenaTest, AnArenaOfAnotherSizeIsRefused) {
  const auto mapped =
      MappedArena::map(arena_->fd(), arena_->address(), arena_->bytes() - kHugePageBytes);
  ASSERT_FALSE(mapped.ok());
  EXPECT_NE(mapped.status().message().find("its owner says"), std::string::npos);
}

// Who reads memory whose end has moved is killed (SIGBUS).
TEST_F(SharedArenaTest, NobodyCanCutIt) {
  EXPECT_EQ(ftruncate(arena_->fd(), 0), -1);
  EXPECT_EQ(errno, EPERM);
}

TEST_F(SharedArenaTest, WhatItsOwnerCouldCutIsNotMapped) {
  const UniqueFd fd(memfd_create("not-sealed", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_TRUE(fd.valid());
  ASSERT_EQ(ftruncate(fd.get(), static_cast<off_t>(kHugePageBytes)), 0);
  EXPECT_FALSE(MappedArena::map(fd.get(), kHugePageBytes, kHugePageBytes).ok());
  ASSERT_TRUE(seal_size(fd.get()).ok());
  EXPECT_TRUE(MappedArena::map(fd.get(), kHugePageBytes, kHugePageBytes).ok());
}

TEST_F(SharedArenaTest, MemoryThatIsFreedGoesBackToTheKernel) {
  const size_t before = used_bytes(*arena_);
  const size_t bytes = 8 * kHugePageBytes;
  std::byte* const memory = arena_->allocate(bytes, false);
  ASSERT_NE(memory, nullptr);
  std::memset(memory, 1, bytes);
  EXPECT_GE(used_bytes(*arena_), before + bytes - kHugePageBytes);
  arena_->free(memory, bytes);
  EXPECT_LE(used_bytes(*arena_), before + kHugePageBytes);
  EXPECT_EQ(arena_->allocate(arena_->bytes() + 1, false), nullptr);
}

TEST_F(SharedArenaTest, AForkedChildLeavesItAlone) {
  const size_t bytes = 2 * kHugePageBytes;
  HugeMemory memory = allocate_huge(bytes, true);
  std::memset(memory.get(), 9, bytes);
  const pid_t child = fork();
  if (child == 0) {
    memory.reset();
    const bool has_one = SharedArena::existing() != nullptr || SharedArena::make() != nullptr;
    _exit(has_one ? 1 : 0);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(memory[0], std::byte{9});
  EXPECT_EQ(memory[bytes - 1], std::byte{9});
}

// Blocks never overlap, keep their bytes, and leave one free range when all are gone.
TEST_F(SharedArenaTest, RandomAllocationsKeepTheirBytes) {
  struct Block {
    std::byte* memory;
    size_t bytes;
    std::byte mark;
  };
  std::mt19937 random(7);
  std::vector<Block> blocks;
  const auto give_back = [&](size_t i) {
    const Block block = blocks[i];
    for (size_t at = 0; at < block.bytes; ++at) ASSERT_EQ(block.memory[at], block.mark);
    arena_->free(block.memory, block.bytes);
    blocks[i] = blocks.back();
    blocks.pop_back();
  };
  for (int i = 0; i < 500; ++i) {
    if (!blocks.empty() && random() % 2 == 0) {
      give_back(random() % blocks.size());
    } else {
      const size_t bytes = random() % (random() % 8 == 0 ? 3 * kHugePageBytes : 5000);
      const auto mark = static_cast<std::byte>(random() % 256);
      std::byte* memory = arena_->allocate(bytes, random() % 2 == 0);
      ASSERT_NE(memory, nullptr);
      EXPECT_EQ(address_of(memory) % 64, 0U);
      std::memset(memory, static_cast<int>(mark), bytes);
      blocks.push_back({memory, bytes, mark});
    }
  }
  while (!blocks.empty()) give_back(0);
  std::byte* const all = arena_->allocate(arena_->bytes() - kHugePageBytes, false);
  EXPECT_NE(all, nullptr);
  if (all != nullptr) arena_->free(all, arena_->bytes() - kHugePageBytes);
}

}  // namespace
}  // namespace dmlcomm::tests
