// SharedBlocks: a block that moves to the arena stays what it was to its program, forks included.

#include "memory/shared_blocks.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <functional>
#include <optional>
#include <thread>
#include <vector>

#include "base/alignment.h"
#include "base/unique_fd.h"
#include "memory/huge_pages.h"
#include "memory/shared_arena.h"

namespace dmlcomm::tests {
namespace {

constexpr size_t kBytes = 2 * kHugePageBytes + 12'345;

// What a large tensor is.
class Block {
 public:
  explicit Block(size_t bytes, std::byte mark = std::byte{1})
      : memory_(SharedBlocks::instance().allocate(bytes)), bytes_(bytes) {
    EXPECT_NE(memory_, nullptr);
    fill(mark);
  }
  ~Block() { EXPECT_EQ(give_back(), SharedBlocks::Removed::ordinary); }
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;

  SharedBlocks::Removed give_back() {
    if (memory_ == nullptr) return SharedBlocks::Removed::ordinary;
    const auto removed = SharedBlocks::instance().remove(memory_);
    if (removed == SharedBlocks::Removed::ordinary) {
      free(memory_);
    } else {
      static auto* const never_freed = new std::vector<void*>;  // reachable, and so no leak
      never_freed->push_back(memory_);
    }
    memory_ = nullptr;
    return removed;
  }
  std::byte* data() const { return static_cast<std::byte*>(memory_); }
  void fill(std::byte mark) { std::fill_n(data(), bytes_, mark); }
  bool holds(std::byte mark) const {
    return std::all_of(data(), data() + bytes_, [&](std::byte b) { return b == mark; });
  }
  void come() { SharedBlocks::instance().consider(memory_, bytes_); }
  void move() {
    come();
    come();
  }
  SharedBlocks::Use use(bool writes = true) const {
    return SharedBlocks::instance().use(memory_, bytes_, writes);
  }

 private:
  void* memory_;
  const size_t bytes_;
};

class SharedBlocksTest : public testing::Test {
 protected:
  void SetUp() override {
    arena_ = SharedArena::make();
    if (arena_ == nullptr) GTEST_SKIP() << "this kernel gives no arena";
    auto mapped = MappedArena::map(arena_->fd(), arena_->address(), arena_->bytes());
    ASSERT_TRUE(mapped.ok()) << mapped.status();
    other_process_ = std::move(*mapped);
    SharedBlocks::instance().enable(arena_, true);
  }

  std::byte* seen(const SharedBlocks::Use& use) const {
    return use.address() == 0 ? nullptr : other_process_.find(use.address(), kBytes);
  }
  size_t used_bytes() const {
    struct stat info;
    EXPECT_EQ(fstat(arena_->fd(), &info), 0);
    return static_cast<size_t>(info.st_blocks) * 512;
  }

  SharedArena* arena_ = nullptr;
  MappedArena other_process_;
};

// A child that waits before it looks, and says whether it saw what it should.
class Child {
 public:
  explicit Child(const std::function<bool()>& sees) {
    int ends[2];
    EXPECT_EQ(pipe(ends), 0);
    UniqueFd wait(ends[0]);
    go_ = UniqueFd(ends[1]);
    pid_ = fork();
    if (pid_ != 0) return;
    go_.reset();
    char none;
    (void)!read(wait.get(), &none, 1);
    _exit(sees() ? 0 : 1);
  }
  ~Child() { EXPECT_TRUE(saw()); }
  // Lets it look, once.
  bool saw() {
    if (pid_ == 0) return true;
    go_.reset();
    int status = -1;
    EXPECT_EQ(waitpid(pid_, &status, 0), pid_);
    pid_ = 0;
    return status == 0;
  }

 private:
  UniqueFd go_;
  pid_t pid_ = 0;
};

TEST_F(SharedBlocksTest, ABlockMovesWhenItComesTheSecondTime) {
  Block block(kBytes);
  block.come();
  EXPECT_EQ(block.use().address(), 0U);
  block.come();
  const auto use = block.use();
  std::byte* const there = seen(use);
  ASSERT_NE(there, nullptr);
  EXPECT_TRUE(block.holds(std::byte{1}));
  EXPECT_TRUE(std::equal(there, there + kBytes, block.data()));
  block.fill(std::byte{2});
  EXPECT_EQ(there[kBytes - 1], std::byte{2});
  std::fill_n(there, kBytes, std::byte{3});
  EXPECT_TRUE(block.holds(std::byte{3}));
}

TEST_F(SharedBlocksTest, OnlyWholeBlocksMoveButPartsAreFound) {
  Block block(kBytes);
  for (int i = 0; i < 3; ++i) SharedBlocks::instance().consider(block.data(), kBytes - 64);
  EXPECT_EQ(block.use().address(), 0U);
  block.move();
  const uint64_t whole = block.use().address();
  ASSERT_NE(whole, 0U);
  auto& blocks = SharedBlocks::instance();
  EXPECT_EQ(blocks.use(block.data() + 100, 50, true).address(), whole + 100);
  EXPECT_EQ(blocks.use(block.data() + 100, kBytes, true).address(), 0U);
  EXPECT_EQ(blocks.use(block.data() - 1, 1, true).address(), 0U);
  EXPECT_TRUE(blocks.is_shared(block.data() + kBytes - 1, 1));
  EXPECT_FALSE(blocks.is_shared(block.data() + kBytes, 1));
}

TEST_F(SharedBlocksTest, MemoryOfTheArenaItselfIsFound) {
  std::byte* const memory = arena_->allocate(kBytes, false);
  ASSERT_NE(memory, nullptr);
  auto& blocks = SharedBlocks::instance();
  EXPECT_TRUE(blocks.is_shared(memory, kBytes));
  {
    auto use = blocks.use(memory + 64, kBytes - 64, true);
    std::fill_n(memory, kBytes, std::byte{9});
    EXPECT_EQ(*other_process_.find(use.address(), kBytes - 64), std::byte{9});
    EXPECT_EQ(use.address(), reinterpret_cast<uintptr_t>(memory) + 64);
    use.abandon();
  }
  EXPECT_FALSE(blocks.is_shared(arena_->at(arena_->bytes()), 1));
  arena_->free(memory, kBytes);
}

TEST_F(SharedBlocksTest, SmallAndUnknownMemoryStays) {
  Block small(SharedBlocks::kMinBytes - 1);
  small.move();
  EXPECT_EQ(small.use().address(), 0U);
  auto& blocks = SharedBlocks::instance();
  alignas(kCacheLineBytes) static std::byte unknown[2 << 20];
  for (int i = 0; i < 3; ++i) blocks.consider(unknown, sizeof(unknown));
  EXPECT_EQ(blocks.use(unknown, sizeof(unknown), true).address(), 0U);
  EXPECT_EQ(blocks.remove(unknown), SharedBlocks::Removed::unknown);
}

TEST_F(SharedBlocksTest, WhatIsRemovedIsOrdinaryMemoryAgain) {
  const size_t before = used_bytes();
  Block block(kBytes);
  block.move();
  EXPECT_GE(used_bytes(), before + kBytes);
  std::byte* const there = seen(block.use());
  EXPECT_EQ(SharedBlocks::instance().remove(block.data()), SharedBlocks::Removed::ordinary);
  EXPECT_LE(used_bytes(), before + kHugePageBytes);
  block.fill(std::byte{7});
  EXPECT_NE(*there, std::byte{7});
  SharedBlocks::instance().add(block.data(), kBytes);
}

TEST_F(SharedBlocksTest, WhatIsInUseIsNotGivenBack) {
  auto* const block = new Block(kBytes);
  block->move();
  auto use = block->use();
  EXPECT_EQ(block->give_back(), SharedBlocks::Removed::stuck);
  delete block;
}

TEST_F(SharedBlocksTest, AForkGivesBothTheirOwn) {
  Block block(kBytes);
  block.move();
  std::byte* const there = seen(block.use(false));
  {
    Child child([&] {
      const bool is_old = block.holds(std::byte{1});
      block.fill(std::byte{8});
      return is_old && block.give_back() == SharedBlocks::Removed::ordinary;
    });
    EXPECT_EQ(block.use().address(), 0U);
    block.fill(std::byte{5});
    EXPECT_EQ(*there, std::byte{1});
    EXPECT_TRUE(child.saw());
  }
  EXPECT_TRUE(block.holds(std::byte{5}));
}

TEST_F(SharedBlocksTest, AfterAForkItMovesAgainAndOldMemoryWaitsForTheChild) {
  const size_t before = used_bytes();
  Block block(kBytes);
  block.move();
  Child child([&] { return block.holds(std::byte{1}); });
  block.fill(std::byte{4});
  block.come();
  std::byte* const there = seen(block.use());
  ASSERT_NE(there, nullptr);
  EXPECT_EQ(there[kBytes - 1], std::byte{4});
  Block another(kBytes, std::byte{6});  // would take the memory that the child sees
  another.move();
  EXPECT_TRUE(child.saw());
  another.give_back();
  block.give_back();
  EXPECT_LE(used_bytes(), before + kHugePageBytes);
}

TEST_F(SharedBlocksTest, WhatOthersReadStaysUntilTheyHaveReadIt) {
  Block block(kBytes);
  block.move();
  {
    auto use = block.use(false);
    std::byte* const there = seen(use);
    {
      Child child([] { return true; });
    }
    block.move();
    EXPECT_EQ(block.use().address(), 0U);
    Block another(kBytes, std::byte{6});
    another.move();
    EXPECT_EQ(*there, std::byte{1});
  }
  block.come();
  EXPECT_NE(block.use().address(), 0U);
}

TEST_F(SharedBlocksTest, WhatOthersWriteDuringAForkArrives) {
  Block block(kBytes);
  block.move();
  auto use = block.use(true);
  std::byte* const there = seen(use);
  Child child([&] {
    block.fill(std::byte{9});  // whatever it saw, this is its own
    return block.holds(std::byte{9}) && block.give_back() == SharedBlocks::Removed::ordinary;
  });
  std::fill_n(there, kBytes, std::byte{3});
  EXPECT_TRUE(block.holds(std::byte{3}));
  EXPECT_TRUE(child.saw());
  EXPECT_TRUE(block.holds(std::byte{3}));
}

TEST_F(SharedBlocksTest, AnAbandonedBlockIsOutOfReach) {
  Block block(kBytes);
  block.move();
  auto use = block.use();
  std::byte* const there = seen(use);
  use.abandon();
  EXPECT_TRUE(block.holds(std::byte{1}));
  std::fill_n(there, kBytes, std::byte{9});
  EXPECT_TRUE(block.holds(std::byte{1}));
  block.move();
  EXPECT_EQ(block.use().address(), 0U);
}

TEST_F(SharedBlocksTest, ReadersSeeTheSameBytesWhileItMoves) {
  for (int i = 0; i < 20; ++i) {
    Block block(kBytes);
    block.come();
    std::atomic<bool> moved{false};
    bool is_same = true;
    std::thread reader([&] {
      do is_same = is_same && block.holds(std::byte{1});
      while (!moved);
    });
    block.come();
    moved = true;
    reader.join();
    EXPECT_TRUE(is_same);
  }
}

}  // namespace
}  // namespace dmlcomm::tests
