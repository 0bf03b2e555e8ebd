// ShmChannel: what lies in the peer's arena is copied through the mapping, the rest by the kernel.

#include "transport/shm/shm_channel.h"

#include <gtest/gtest.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <vector>

#include "base/huge_memory.h"
#include "base/shared_arena.h"

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

// The peer's process does not exist: the kernel copies nothing.
ShmPeer peer_with(MappedArena arena) {
  int ends[2] = {-1, -1};
  EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
  const UniqueFd other(ends[1]);
  ShmPeer peer;
  peer.socket = UniqueFd(ends[0]);
  peer.doorbell = UniqueFd(eventfd(0, EFD_CLOEXEC));
  peer.segment = segment_of(1);
  peer.arena = std::move(arena);
  peer.local_index = 1;
  peer.can_pull = true;
  return peer;
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
    ASSERT_TRUE(channel.push(address_of(theirs.get()), sent.data(), bytes).ok());
    EXPECT_TRUE(std::equal(sent.begin(), sent.end(), theirs.get()));
    std::vector<std::byte> received(bytes);
    ASSERT_TRUE(channel.pull(address_of(theirs.get()), received.data(), bytes).ok());
    EXPECT_EQ(received, sent);
  }
}

TEST(ShmChannelTest, OtherMemoryIsTheKernels) {
  ShmChannel channel(segment_of(0), 0, peer_with({}));
  std::vector<std::byte> theirs(kBytes), ours = pattern(kBytes);
  EXPECT_FALSE(channel.push(address_of(theirs.data()), ours.data(), kBytes).ok());
  EXPECT_FALSE(channel.pull(address_of(theirs.data()), ours.data(), kBytes).ok());
}

}  // namespace
}  // namespace dmlcomm::transport::shm
