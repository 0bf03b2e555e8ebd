// ShmChannel: what lies in the peer's arena is copied through the mapping, the rest by the kernel.

#include "transport/shm/shm_channel.h"

#include <gtest/gtest.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <vector>

#include "memory/huge_pages.h"
#include "memory/shared_arena.h"

namespace dmlcomm::transport::shm {
namespace {

constexpr size_t kBytes = (1u << 20) + 3;

uint64_t address_of(const void* memory) { return reinterpret_cast<uintptr_t>(memory); }

std::vector<std::byte> pattern(size_t bytes) {
  std::vector<std::byte> data(bytes);
  for (size_t i = 0; i < bytes; ++i) data[i] = static_cast<std::byte>(i % 251);
  return data;
}

std::shared_ptr<Segment> segment_of(uint32_t rank) {
  auto segment = Segment::create(rank, 2, 0);
  EXPECT_TRUE(segment.ok()) << segment.status();
  return std::move(*segment);
}

// Without a process the kernel copies nothing.
ShmPeer peer_with(MappedArena arena, pid_t pid = 0) {
  int ends[2] = {-1, -1};
  EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
  const UniqueFd other(ends[1]);
  ShmPeer peer;
  peer.socket = UniqueFd(ends[0]);
  peer.doorbell = UniqueFd(eventfd(0, EFD_CLOEXEC));
  peer.segment = segment_of(1);
  peer.arena = std::move(arena);
  peer.local_index = 1;
  peer.pid = pid;
  peer.is_readable = true;
  return peer;
}

Result<Access> read(Channel& channel, uint64_t address, std::byte* to, size_t bytes) {
  Access access = Access::idle;
  DMLCOMM_RETURN_IF_ERROR(channel.memory()->read({address}, to, bytes, &access));
  return access;
}

Result<Access> write(Channel& channel, uint64_t address, const std::byte* from, size_t bytes) {
  Access access = Access::idle;
  DMLCOMM_RETURN_IF_ERROR(channel.memory()->write({address}, from, bytes, &access));
  return access;
}

TEST(ShmChannelTest, TheArenaNeedsNoKernel) {
  SharedArena* const arena = SharedArena::make();
  if (arena == nullptr) GTEST_SKIP() << "this kernel gives no arena";
  auto mapped = MappedArena::map(arena->fd(), arena->address(), arena->bytes());
  ASSERT_TRUE(mapped.ok()) << mapped.status();
  ShmChannel channel(segment_of(0), 0, peer_with(std::move(*mapped)));
  const HugeMemory theirs = allocate_huge(kBytes, true);
  for (const size_t bytes : {size_t{0}, size_t{1}, size_t{65'535}, kBytes}) {
    const std::vector<std::byte> sent = pattern(bytes);
    ASSERT_TRUE(write(channel, address_of(theirs.get()), sent.data(), bytes).ok());
    EXPECT_TRUE(std::equal(sent.begin(), sent.end(), theirs.get()));
    std::vector<std::byte> received(bytes);
    ASSERT_TRUE(read(channel, address_of(theirs.get()), received.data(), bytes).ok());
    EXPECT_EQ(received, sent);
  }
}

TEST(ShmChannelTest, NobodyCutsSharedMemoryThatOthersUse) {
  const std::shared_ptr<Segment> segment = segment_of(0);
  EXPECT_NE(ftruncate(segment->fd(), 0), 0);
  SharedArena* const arena = SharedArena::make();
  if (arena != nullptr) {
    EXPECT_NE(ftruncate(arena->fd(), 0), 0);
  }
}

TEST(ShmChannelTest, OtherMemoryIsTheKernels) {
  ShmChannel channel(segment_of(0), 0, peer_with({}));
  std::vector<std::byte> theirs(kBytes), ours = pattern(kBytes);
  EXPECT_FALSE(write(channel, address_of(theirs.data()), ours.data(), kBytes).ok());
  EXPECT_FALSE(read(channel, address_of(theirs.data()), ours.data(), kBytes).ok());
}

TEST(ShmChannelTest, WhatThePeerHasRevokedMayBeAnything) {
  ShmPeer theirs = peer_with({}, getpid());
  const std::shared_ptr<Segment> segment = theirs.segment;
  const std::shared_ptr<Segment> own = segment_of(0);
  ShmChannel channel(own, 0, std::move(theirs));
  ShmPeer ours = peer_with({}, getpid());
  ours.segment = own;
  ours.local_index = 0;
  ShmChannel peer(segment, 1, std::move(ours));

  const std::vector<std::byte> there = pattern(kBytes);
  std::vector<std::byte> here(kBytes);
  constexpr uint64_t kNowhere = 0;
  const auto pull = [&](uint64_t address) { return read(channel, address, here.data(), kBytes); };
  ASSERT_TRUE(pull(address_of(there.data())).ok()) << "the kernel lets a process read its own";
  EXPECT_EQ(*pull(address_of(there.data())), Access::done);
  EXPECT_EQ(here, there);
  EXPECT_FALSE(pull(kNowhere).ok());
  peer.memory()->revoke();
  EXPECT_EQ(*pull(address_of(there.data())), Access::revoked);
  ASSERT_TRUE(pull(kNowhere).ok());
  EXPECT_EQ(*pull(kNowhere), Access::revoked);
}

}  // namespace
}  // namespace dmlcomm::transport::shm
