// UcxChannel with remote memory: what a reader fetches from the sender's memory, and what both are
// left with when one of them takes its memory back. Over CMA, between two rails of this process.
// Without UCX, or where it has no CMA, the tests are skipped.
#include "transport/ucx/ucx_channel.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "transport/frame.h"

namespace dmlcomm::transport::ucx {
namespace {

constexpr uint64_t kKey = 7;
constexpr size_t kWindowBytes = 2 * 1024 * 1024;
constexpr int64_t kLimitNs = 20 * kNsPerS;

using Bytes = std::vector<std::byte>;

bool all_are(const Bytes& bytes, std::byte value) {
  return std::ranges::all_of(bytes, [&](std::byte byte) { return byte == value; });
}

// The ends of a channel, each with a rail of its own.
class UcxChannelTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!UcxApi::load().ok()) GTEST_SKIP() << UcxApi::load().status().message();
    connect(true);
    if (!rails_[0]->has_remote_memory(kKey)) GTEST_SKIP() << "UCX has no CMA here";
  }

  void TearDown() override {
    for (auto& end : ends_) end.reset();
  }

  // `fetches`: the reader may.
  void connect(bool fetches) {
    int sockets[2];
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, sockets), 0);
    for (size_t end : {0u, 1u}) {
      Result<std::unique_ptr<UcxRail>> rail = UcxRail::open("lo", UcxRemoteMemory::on);
      ASSERT_TRUE(rail.ok()) << rail.status().message();
      rails_[end] = std::move(*rail);
      ends_[end] = std::make_unique<UcxChannel>(UniqueFd(sockets[end]), *rails_[end], kKey,
                                                kWindowBytes, "the other end");
    }
    for (size_t end : {0u, 1u})
      ASSERT_TRUE(ends_[end]->connect(rails_[1 - end]->address(), fetches).ok());
    for (size_t end : {0u, 1u}) ends_[end]->descriptor_ready({.readable = true});
  }

  void poll() {
    for (const auto& rail : rails_) rail->poll();
  }
  template <typename Done>
  bool poll_until(const Done& done) {
    const int64_t end_ns = now_ns() + kLimitNs;
    while (!done() && now_ns() < end_ns) poll();
    return done();
  }

  Result<size_t> write(Bytes& bytes, size_t done = 0) {
    const iovec part{bytes.data() + done, bytes.size() - done};
    return ends_[0]->write(&part, 1);
  }
  // The reader has heard of a message of these bytes, and has not begun to fetch it.
  void offer(Bytes& bytes) {
    const Result<size_t> taken = write(bytes);
    ASSERT_TRUE(taken.ok());
    ASSERT_EQ(*taken, 0u);
    ASSERT_TRUE(poll_until([&] { return ends_[1]->maybe_readable(); }));
  }

  std::array<std::unique_ptr<UcxRail>, 2> rails_;
  std::array<std::unique_ptr<UcxChannel>, 2> ends_;
};

TEST_F(UcxChannelTest, LargePartsAreFetchedToTheirPlace) {
  Bytes sent(5'000'000), received(sent.size());
  for (size_t i = 0; i < sent.size(); ++i) sent[i] = static_cast<std::byte>(i * 7 / 3);
  size_t num_taken = 0, num_read = 0;
  ASSERT_TRUE(poll_until([&] {
    const Result<size_t> taken = write(sent, num_taken);
    const Result<size_t> read =
        ends_[1]->read_in_place(received.data() + num_read, received.size() - num_read);
    EXPECT_TRUE(taken.ok() && read.ok());
    num_taken += *taken;
    num_read += *read;
    return num_taken == sent.size() && num_read == sent.size();
  }));
  EXPECT_EQ(received, sent);
  EXPECT_EQ(ends_[0]->bytes_lent(), sent.size());
}

TEST_F(UcxChannelTest, TheReasonToTakeMemoryBackGoesBesideTheBytes) {
  Bytes sent(kSlotBytes, std::byte{1}), received(sent.size());
  offer(sent);
  EXPECT_TRUE(ends_[1]->told().ok());
  const Status reason(StatusCode::timeout, std::string(kMaxReasonBytes, 'x'));
  ends_[0]->tell(reason);
  ends_[0]->let_go();
  (void)ends_[0]->flow();
  EXPECT_EQ(ends_[1]->told().to_string(), reason.to_string());
  ASSERT_TRUE(
      poll_until([&] { return !ends_[1]->read_in_place(received.data(), received.size()).ok(); }));
  ends_[1]->let_go();  // of `received`, to which it was fetching
}

TEST_F(UcxChannelTest, NothingIsLentToAPeerThatMayNotFetch) {
  TearDown();
  connect(false);
  Bytes sent(kSlotBytes, std::byte{1});
  EXPECT_EQ(*write(sent), sent.size()) << "taken at once, which is a copy";
}

// The receiver does fetch what the memory has by then.
TEST_F(UcxChannelTest, WhatIsFetchedFromMemoryThatWasTakenBackIsNotGood) {
  Bytes sent(kSlotBytes, std::byte{1}), received(kSlotBytes, std::byte{2});
  offer(sent);
  ends_[0]->let_go();
  std::ranges::fill(sent, std::byte{3});
  const auto read = [&] { return ends_[1]->read_in_place(received.data(), received.size()); };
  EXPECT_EQ(*read(), 0u);
  ASSERT_TRUE(poll_until([&] { return all_are(received, std::byte{3}); }));
  EXPECT_EQ(*read(), 0u);
  EXPECT_EQ(write(sent).status().code(), StatusCode::peer_lost);
  ends_[1]->descriptor_ready({.readable = true});
  ASSERT_TRUE(poll_until([&] { return !read().ok(); })) << "it hears of the end at once";
}

}  // namespace
}  // namespace dmlcomm::transport::ucx
