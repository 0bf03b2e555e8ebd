// How connections fail before they are trusted: refused, or broken later.

#include <gtest/gtest.h>
#include <poll.h>

#include <string>
#include <utility>

#include "transport/handshake.h"
#include "transport/tcp/socket.h"

namespace dmlcomm::transport {
namespace {

const std::string kLoopback = "127.0.0.1";

class HandshakeTest : public testing::Test {
 protected:
  void SetUp() override {
    auto listener = tcp::listen_on(kLoopback, {}, {});
    ASSERT_TRUE(listener.ok()) << listener.status();
    listener_ = std::move(*listener);
  }

  Handshake connect() {
    auto fd = tcp::begin_connect("lo", kLoopback, kLoopback, listener_.port, {});
    EXPECT_TRUE(fd.ok()) << fd.status();
    Handshake handshake(std::move(*fd), false, 1, 0, "connect", Deadline::after_s(10));
    handshake.send(Hello{}, key_, 0, {});
    return handshake;
  }

  // Until it fails.
  Status failure_of(Handshake& handshake) {
    while (!handshake.deadline().expired()) {
      const auto progress = handshake.advance(key_);
      if (!progress.ok()) return progress.status();
      pollfd ready{handshake.fd(), POLLIN, 0};
      poll(&ready, 1, 100);
    }
    return Status();
  }

  tcp::Listener listener_;
  const JobKey key_ = *JobKey::random();
};

TEST_F(HandshakeTest, ARefusedConnectionWasNeverMade) {
  listener_.fd.reset();
  auto fd = tcp::begin_connect("lo", kLoopback, kLoopback, listener_.port, {});
  if (!fd.ok()) {
    EXPECT_EQ(fd.status().code(), StatusCode::peer_lost) << "the kernel may say so at once";
    return;
  }
  Handshake handshake(std::move(*fd), false, 1, 0, "connect", Deadline::after_s(10));
  EXPECT_EQ(failure_of(handshake).code(), StatusCode::peer_lost);
  EXPECT_FALSE(handshake.connected());
}

TEST_F(HandshakeTest, AConnectionThatIsClosedBeforeTheHelloWasMade) {
  Handshake handshake = connect();
  pollfd ready{listener_.fd.get(), POLLIN, 0};
  ASSERT_EQ(poll(&ready, 1, 10'000), 1);
  tcp::accept_from(listener_.fd.get()).reset();
  EXPECT_EQ(failure_of(handshake).code(), StatusCode::peer_lost);
  EXPECT_TRUE(handshake.connected());
}

}  // namespace
}  // namespace dmlcomm::transport
