// Relays between sockets, and what is said before one is made.

#include "transport/relay.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "transport/relay_preamble.h"
#include "transport/socket.h"
#include "transport/tcp/tcp_channel.h"

namespace dmlcomm::transport {
namespace {

using Bytes = std::vector<std::byte>;

Bytes random_bytes(size_t count) {
  std::mt19937 random(static_cast<unsigned>(count));
  Bytes bytes(count);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

// Two sockets, as their owners have them, and a relay between their other ends.
class RelayTest : public testing::Test {
 protected:
  void SetUp() override {
    std::array<std::unique_ptr<Channel>, 2> inner;
    for (size_t i = 0; i < 2; ++i) {
      int fds[2];
      ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fds), 0);
      outer_[i] = UniqueFd(fds[0]);
      inner[i] =
          std::make_unique<tcp::TcpChannel>(UniqueFd(fds[1]), TicketMarking::none, 0, "test");
    }
    relay_ = std::make_unique<Relay>(std::move(inner[0]), std::move(inner[1]));
  }

  // As the event loop does after a change of a socket: one event may tell of bytes and, another
  // one, of the end behind them.
  void advance() {
    for (int event = 0; event < 2; ++event) {
      for (size_t i = 0; i < 2; ++i) {
        relay_->end(i).descriptor_ready({.readable = true, .writable = true});
      }
      while (relay_->advance(scratch_)) {
      }
    }
  }

  // Sends everything from one owner to the other, who reads only when told to; what has come.
  Bytes pass(size_t from, const Bytes& bytes) {
    Bytes received;
    size_t sent = 0;
    while (received.size() < bytes.size()) {
      sent += *send_some(outer_[from].get(), std::span(bytes).subspan(sent), {});
      advance();
      read(1 - from, &received);
    }
    return received;
  }

  // False at the end of the stream.
  bool read(size_t at, Bytes* received) {
    Bytes part(64 * 1024);
    for (;;) {
      const ssize_t got = recv(outer_[at].get(), part.data(), part.size(), 0);
      if (got == 0) return false;
      if (got < 0) return true;
      received->insert(received->end(), part.begin(), part.begin() + got);
    }
  }

  std::array<UniqueFd, 2> outer_;
  std::unique_ptr<Relay> relay_;
  Bytes scratch_ = Bytes(16 * 1024);
};

TEST_F(RelayTest, PassesEveryByteInOrderBothWays) {
  for (size_t count : {1u, 16u * 1024, 16u * 1024 + 1, 3'000'000u}) {
    const Bytes bytes = random_bytes(count);
    EXPECT_TRUE(pass(0, bytes) == bytes) << count;
    EXPECT_TRUE(pass(1, bytes) == bytes) << count;
  }
  EXPECT_FALSE(relay_->is_over());
}

TEST_F(RelayTest, ASlowReceiverSlowsTheSenderDown) {
  const Bytes bytes = random_bytes(100'000'000);
  size_t sent = 0;
  for (;;) {
    const size_t now = *send_some(outer_[0].get(), std::span(bytes).subspan(sent), {});
    if (now == 0) break;
    sent += now;
    advance();
  }
  EXPECT_LT(sent, bytes.size() / 10) << "nobody has read: what the kernels queue, and one read";
  Bytes received;
  while (received.size() < sent) {
    read(1, &received);
    advance();
  }
  EXPECT_TRUE(std::equal(received.begin(), received.end(), bytes.begin()));
}

TEST_F(RelayTest, TheEndOfOneDirectionIsPassedOnAndTheOtherGoesOn) {
  const Bytes bytes = random_bytes(1000);
  EXPECT_EQ(*send_some(outer_[0].get(), bytes, {}), bytes.size());
  shutdown(outer_[0].get(), SHUT_WR);
  advance();
  Bytes received;
  EXPECT_FALSE(read(1, &received)) << "the end";
  EXPECT_EQ(received, bytes) << "and everything before it";
  EXPECT_FALSE(relay_->is_over());
  EXPECT_EQ(pass(1, bytes), bytes);
  outer_[1].reset();
  advance();
  EXPECT_TRUE(relay_->is_over());
}

TEST_F(RelayTest, TheLastBytesOfAnEndThatIsGonePassAndThenItsEnd) {
  const Bytes last = random_bytes(1000);
  EXPECT_EQ(*send_some(outer_[1].get(), last, {}), last.size());
  outer_[1].reset();
  EXPECT_EQ(*send_some(outer_[0].get(), random_bytes(1000), {}), 1000u);
  advance();
  Bytes received;
  EXPECT_FALSE(read(0, &received)) << "the end";
  EXPECT_EQ(received, last);
  EXPECT_EQ(*send_some(outer_[0].get(), random_bytes(1000), {}), 1000u) << "for nobody";
  outer_[0].reset();
  advance();
  EXPECT_TRUE(relay_->is_over());
}

TEST_F(RelayTest, BytesThatWaitAreNotLostWithTheirSender) {
  const Bytes bytes = random_bytes(10'000'000);
  size_t sent = 0;
  while (const size_t now = *send_some(outer_[0].get(), std::span(bytes).subspan(sent), {})) {
    sent += now;
    advance();
  }
  outer_[0].reset();
  advance();
  Bytes received;
  while (read(1, &received)) advance();
  EXPECT_EQ(received.size(), sent);
}

// --- what is said before ---

RelayPreamble example() {
  RelayPreamble preamble;
  preamble.secret.fill(std::byte{0x5a});
  preamble.hops = {{"10.0.1.2", 4711}, {"fd00::7", 65535}};
  return preamble;
}

TEST(RelayPreambleTest, SurvivesTheWire) {
  const Bytes bytes = encode(example());
  const auto size = relay_preamble_bytes(std::span(bytes).first(kRelayHeaderBytes));
  ASSERT_TRUE(size.ok()) << size.status();
  EXPECT_EQ(*size, bytes.size());
  const auto decoded = decode_relay_preamble(bytes);
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  EXPECT_EQ(decoded->secret, example().secret);
  EXPECT_EQ(decoded->hops, example().hops);
}

TEST(RelayPreambleTest, AnythingElseIsRefused) {
  const Bytes good = encode(example());
  for (size_t i = 0; i < good.size(); ++i) {
    Bytes bad = good;
    bad[i] ^= std::byte{0x80};
    const auto size = relay_preamble_bytes(std::span(bad).first(kRelayHeaderBytes));
    const bool is_secret = i >= 8 && i < kRelayHeaderBytes;
    EXPECT_TRUE(is_secret || !size.ok() || *size != good.size() || !decode_relay_preamble(bad).ok())
        << i;
  }
  RelayPreamble empty = example();
  empty.hops.clear();
  EXPECT_FALSE(decode_relay_preamble(encode(empty)).ok()) << "a way to nowhere";
}

TEST(RelayAnswerTest, SurvivesTheWireAndTellsARefusalApart) {
  const auto status_of = [](RelayAnswer answer) {
    const RelayAnswerBytes bytes = encode(answer);
    return check_relay_answer(bytes);
  };
  EXPECT_TRUE(status_of(RelayAnswer::connected).ok());
  EXPECT_EQ(status_of(RelayAnswer::refused).code(), StatusCode::peer_lost);
  EXPECT_EQ(status_of(RelayAnswer::unreachable).code(), StatusCode::io_error);
  RelayAnswerBytes bytes = encode(RelayAnswer::connected);
  bytes[0] = std::byte{1};
  EXPECT_EQ(check_relay_answer(bytes).code(), StatusCode::protocol_error);
}

}  // namespace
}  // namespace dmlcomm::transport
