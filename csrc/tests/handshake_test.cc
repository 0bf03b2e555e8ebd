// What ranks publish of their hosts, and how connections fail before they are trusted: refused, or
// broken later.

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <string>
#include <utility>
#include <vector>

#include "base/str_cat.h"
#include "transport/address.h"
#include "transport/handshake.h"
#include "transport/socket.h"
#include "transport/tcp/socket.h"

namespace dmlcomm::transport {
namespace {

const std::string kLoopback = "127.0.0.1";

HostAddress host_on(const std::string& kernel, int network, int num_cores,
                    const std::string& cores = "f") {
  HostAddress host;
  host.host_id = str_cat(kernel, ":", network);
  host.host_name = str_cat("h", network);
  host.unix_name = "socket";
  host.num_cores = num_cores;
  host.cores = cores;
  return host;
}

TEST(HostAddressTest, SurvivesTheRendezvous) {
  const auto decoded = HostAddress::decode(host_on("boot", 7, 12).encode());
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  EXPECT_EQ(decoded->host_id, "boot:7");
  EXPECT_EQ(decoded->machine_id(), "boot");
  EXPECT_EQ(decoded->num_cores, 12);
  EXPECT_EQ(decoded->cores, "f");
  for (const char* text :
       {"boot:7 h7 1 socket 1", "boot:7 h7 1 socket 0 f", "boot:7 h7 1 socket two f"}) {
    EXPECT_EQ(HostAddress::decode(text).status().code(), StatusCode::protocol_error) << text;
  }
}

TEST(HostAddressTest, OnlyHostsOfOneKernelShareItsCores) {
  EXPECT_EQ(ranks_per_shared_core({host_on("a", 1, 1), host_on("a", 1, 1), host_on("b", 1, 1)}), 0);
  EXPECT_EQ(ranks_per_shared_core({host_on("a", 1, 2), host_on("a", 2, 2), host_on("a", 2, 2)}),
            1.5);
  // The kernel with the fewest cores for its ranks counts, and there the rank that may use most.
  EXPECT_EQ(ranks_per_shared_core({host_on("a", 1, 8), host_on("a", 2, 8), host_on("b", 3, 1),
                                   host_on("b", 4, 4), host_on("c", 5, 1)}),
            0.5);
}

TEST(HostAddressTest, RanksOfAHostShareItsCoresEvenlyOrNotAtAll) {
  const auto four_on = [](int num_cores) {
    return ranks_per_core_of_host(std::vector<HostAddress>(4, host_on("a", 1, num_cores)));
  };
  EXPECT_EQ(four_on(1), 4);
  EXPECT_EQ(four_on(2), 2);
  EXPECT_EQ(four_on(3), 0);
  EXPECT_EQ(four_on(4), 1);
  EXPECT_EQ(four_on(8), 0);
  EXPECT_EQ(ranks_per_core_of_host({host_on("a", 1, 1, "1"), host_on("a", 1, 1, "2")}), 0);
  EXPECT_EQ(ranks_per_core_of_host({host_on("a", 1, 1), host_on("a", 2, 1)}), 0);
  EXPECT_EQ(ranks_per_core_of_host({host_on("a", 1, 1, "-"), host_on("a", 1, 1, "-")}), 0);
}

TEST(RailEndpointTest, ARankThatCannotListenSaysWhy) {
  const Status status = decode_rails(encode_no_rails("no free port")).status();
  EXPECT_EQ(status.code(), StatusCode::peer_lost);
  EXPECT_EQ(status.message(), "no free port");
}

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
    Handshake handshake({std::move(*fd), {}, {}, {}}, nullptr, 1, 0, "connect",
                        Deadline::after_s(10));
    handshake.send(Hello{}, key_, 0, {});
    return handshake;
  }

  // Until it fails.
  Status failure_of(Handshake& handshake) {
    while (!handshake.expired()) {
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
  Handshake handshake({std::move(*fd), {}, {}, {}}, nullptr, 1, 0, "connect",
                      Deadline::after_s(10));
  EXPECT_EQ(failure_of(handshake).code(), StatusCode::peer_lost);
  EXPECT_FALSE(handshake.connected());
}

TEST_F(HandshakeTest, AConnectionThatIsClosedBeforeTheHelloWasMade) {
  Handshake handshake = connect();
  pollfd ready{listener_.fd.get(), POLLIN, 0};
  ASSERT_EQ(poll(&ready, 1, 10'000), 1);
  std::move(*accept_from(listener_.fd.get())).reset();
  EXPECT_EQ(failure_of(handshake).code(), StatusCode::peer_lost);
  EXPECT_TRUE(handshake.connected());
}

TEST_F(HandshakeTest, ARelayThatResetsTheConnectionIsNotThePeer) {
  auto fd = tcp::begin_connect("lo", kLoopback, kLoopback, listener_.port, {});
  ASSERT_TRUE(fd.ok()) << fd.status();
  const RelayPreamble preamble{{}, {{kLoopback, 1}}};
  Handshake handshake({std::move(*fd), encode(preamble), {}, {}}, nullptr, 1, 0, "connect",
                      Deadline::after_s(10));
  pollfd ready{listener_.fd.get(), POLLIN, 0};
  ASSERT_EQ(poll(&ready, 1, 10'000), 1);
  UniqueFd relay = std::move(*accept_from(listener_.fd.get()));
  const auto progress = handshake.advance(key_);
  ASSERT_TRUE(progress.ok()) << progress.status();
  const linger reset{1, 0};
  ASSERT_EQ(setsockopt(relay.get(), SOL_SOCKET, SO_LINGER, &reset, sizeof(reset)), 0);
  relay.reset();
  pollfd end{handshake.fd(), POLLIN, 0};
  ASSERT_EQ(poll(&end, 1, 10'000), 1);
  handshake.send(Hello{}, key_, 0, {});
  EXPECT_EQ(failure_of(handshake).code(), StatusCode::io_error);
  EXPECT_FALSE(handshake.connected());
}

}  // namespace
}  // namespace dmlcomm::transport
