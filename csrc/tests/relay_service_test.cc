// Relay services over loopback: chains of them, refusals, strangers and the end; and which way a
// lane takes.

#include "transport/tcp/relay_service.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <cstring>
#include <ctime>
#include <memory>
#include <string>
#include <vector>

#include "base/str_cat.h"
#include "transport/handshake.h"
#include "transport/socket.h"
#include "transport/tcp/ways.h"

namespace dmlcomm::transport::tcp {
namespace {

const std::string kLoopback = "127.0.0.1";
constexpr int kWaitMs = 10'000;

bool wait_readable(int fd) {
  pollfd ready{fd, POLLIN, 0};
  return poll(&ready, 1, kWaitMs) == 1;
}

// Exactly `count` bytes, or those before the end.
std::string read_text(int fd, size_t count) {
  std::string text;
  while (text.size() < count && wait_readable(fd)) {
    std::vector<char> part(count - text.size());
    const ssize_t got = recv(fd, part.data(), part.size(), 0);
    if (got <= 0) break;
    text.append(part.data(), static_cast<size_t>(got));
  }
  return text;
}

void write_text(int fd, const std::string& text) {
  ASSERT_EQ(send(fd, text.data(), text.size(), MSG_NOSIGNAL), static_cast<ssize_t>(text.size()));
}

class RelayServiceTest : public testing::Test {
 protected:
  void SetUp() override {
    secret_.fill(std::byte{7});
    auto listener = listen_on(kLoopback, {}, {});
    ASSERT_TRUE(listener.ok()) << listener.status();
    peer_ = std::move(*listener);
    add_service();
  }

  void add_service() {
    auto service = RelayService::create({}, {});
    ASSERT_TRUE(service.ok()) << service.status();
    auto port = (*service)->listen(kLoopback);
    ASSERT_TRUE(port.ok()) << port.status();
    (*service)->admit(secret_);
    (*service)->allow(secret_, {kLoopback});
    services_.push_back(std::move(*service));
    ports_.push_back(*port);
  }

  // Through all services to `port`.
  UniqueFd ask(uint16_t port, const RelayService::Secret& secret) {
    RelayPreamble preamble{secret, {}};
    for (size_t i = 1; i < ports_.size(); ++i) preamble.hops.push_back({kLoopback, ports_[i]});
    preamble.hops.push_back({kLoopback, port});
    auto fd = begin_connect("lo", kLoopback, kLoopback, ports_[0], {});
    EXPECT_TRUE(fd.ok()) << fd.status();
    pollfd ready{fd->get(), POLLOUT, 0};
    EXPECT_EQ(poll(&ready, 1, kWaitMs), 1);
    const auto bytes = encode(preamble);
    EXPECT_EQ(*send_some(fd->get(), bytes, {}), bytes.size());
    return std::move(*fd);
  }

  Status answer(int fd) {
    RelayAnswerBytes bytes{};
    const std::string text = read_text(fd, bytes.size());
    std::memcpy(bytes.data(), text.data(), text.size());
    return check_relay_answer(bytes);
  }

  UniqueFd accept_peer() {
    EXPECT_TRUE(wait_readable(peer_.fd.get()));
    return std::move(*accept_from(peer_.fd.get()));
  }

  RelayService::Secret secret_{};
  Listener peer_;
  std::vector<std::shared_ptr<RelayService>> services_;
  std::vector<uint16_t> ports_;
};

TEST_F(RelayServiceTest, ConnectsThroughOneAndThroughThree) {
  for (int num_services : {1, 3}) {
    while (static_cast<int>(services_.size()) < num_services) add_service();
    const UniqueFd near = ask(peer_.port, secret_);
    write_text(near.get(), "early");  // before the answer, as a hello is
    const UniqueFd far = accept_peer();
    EXPECT_TRUE(answer(near.get()).ok());
    EXPECT_EQ(read_text(far.get(), 5), "early");
    write_text(far.get(), "back");
    EXPECT_EQ(read_text(near.get(), 4), "back");
    shutdown(near.get(), SHUT_WR);
    EXPECT_EQ(read_text(far.get(), 1), "") << "the end";
    write_text(far.get(), "last");
    EXPECT_EQ(read_text(near.get(), 4), "last");
  }
}

TEST_F(RelayServiceTest, APeerThatRefusesIsToldApartFromARelayThatDoes) {
  add_service();
  peer_.fd.reset();
  EXPECT_EQ(answer(ask(peer_.port, secret_).get()).code(), StatusCode::peer_lost);
  services_.pop_back();
  EXPECT_EQ(answer(ask(peer_.port, secret_).get()).code(), StatusCode::io_error);
}

TEST_F(RelayServiceTest, StrangersAreDropped) {
  RelayService::Secret other = secret_;
  other[15] = std::byte{8};
  EXPECT_EQ(read_text(ask(peer_.port, other).get(), 1), "");
  services_[0]->dismiss(secret_);
  EXPECT_EQ(read_text(ask(peer_.port, secret_).get(), 1), "");
}

TEST_F(RelayServiceTest, NobodyIsConnectedToWhatIsNoAddressOfTheJob) {
  services_[0]->allow(secret_, {"127.0.0.2"});
  EXPECT_EQ(read_text(ask(peer_.port, secret_).get(), 1), "");
  pollfd nobody{peer_.fd.get(), POLLIN, 0};
  EXPECT_EQ(poll(&nobody, 1, 0), 0);
}

TEST_F(RelayServiceTest, WhoIsFasterWaitsUntilTheAddressesAreKnown) {
  services_[0]->dismiss(secret_);
  services_[0]->admit(secret_);
  const UniqueFd near = ask(peer_.port, secret_);
  services_[0]->allow(secret_, {kLoopback});
  EXPECT_TRUE(answer(near.get()).ok());
  EXPECT_TRUE(accept_peer().valid());
}

TEST_F(RelayServiceTest, StrangersAreDroppedWhenTheyAreTooMany) {
  std::vector<UniqueFd> strangers;
  for (int i = 0; i < 200; ++i) {
    auto fd = begin_connect("lo", kLoopback, kLoopback, ports_[0], {});
    ASSERT_TRUE(fd.ok()) << fd.status();
    strangers.push_back(std::move(*fd));
  }
  EXPECT_EQ(read_text(strangers.front().get(), 1), "");
  EXPECT_TRUE(answer(ask(peer_.port, secret_).get()).ok());
}

// Descriptors of this process, as far as it may have any.
class Exhaustion {
 public:
  Exhaustion() {
    EXPECT_EQ(getrlimit(RLIMIT_NOFILE, &before_), 0);
    rlimit few = before_;
    few.rlim_cur = 256;
    EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &few), 0);
    for (;;) {
      UniqueFd fd(socket(AF_UNIX, SOCK_STREAM, 0));
      if (!fd.valid()) break;
      fds_.push_back(std::move(fd));
    }
    EXPECT_FALSE(fds_.empty());
  }
  ~Exhaustion() { EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &before_), 0); }
  void free(size_t count) { fds_.resize(fds_.size() - count); }

 private:
  rlimit before_{};
  std::vector<UniqueFd> fds_;
};

TEST_F(RelayServiceTest, WithoutDescriptorsConnectionsWaitAndTheServiceRests) {
  Exhaustion exhaustion;
  exhaustion.free(1);
  const UniqueFd near = ask(peer_.port, secret_);
  const clock_t before = clock();
  pollfd nothing{near.get(), POLLIN, 0};
  EXPECT_EQ(poll(&nothing, 1, 500), 0);
  EXPECT_LT(clock() - before, CLOCKS_PER_SEC / 4) << "of the time that a core had";
  exhaustion.free(3);
  EXPECT_TRUE(answer(near.get()).ok());
}

TEST_F(RelayServiceTest, TheEndWaitsForLastWordsButNotForEver) {
  const UniqueFd near = ask(peer_.port, secret_);
  const UniqueFd far = accept_peer();
  EXPECT_TRUE(answer(near.get()).ok());
  write_text(near.get(), "last words");
  services_.clear();
  EXPECT_EQ(read_text(far.get(), 10), "last words");
  EXPECT_EQ(read_text(far.get(), 1), "") << "cut, as nobody has closed";
}

TEST_F(RelayServiceTest, AHandshakeGoesThrough) {
  const JobKey key = *JobKey::random();
  const RelayPreamble preamble{secret_, {{kLoopback, peer_.port}}};
  auto fd = begin_connect("lo", kLoopback, kLoopback, ports_[0], {});
  ASSERT_TRUE(fd.ok()) << fd.status();
  Handshake outgoing({std::move(*fd), encode(preamble), {}, {}}, nullptr, 1, 0, "connect",
                     Deadline::after_s(10));
  outgoing.begin({}, key, {});
  std::unique_ptr<Handshake> incoming;
  for (bool has_answered = false; !outgoing.expired();) {
    const auto progress = outgoing.advance(key);
    ASSERT_TRUE(progress.ok()) << progress.status();
    if (*progress == Handshake::Progress::received) break;
    if (!incoming && wait_readable(peer_.fd.get())) {
      incoming =
          std::make_unique<Handshake>(Attempt{std::move(*accept_from(peer_.fd.get())), {}, {}, {}},
                                      nullptr, -1, 0, "incoming", Deadline::after_s(10));
      incoming->begin({}, key, {});
    }
    const auto theirs = incoming->advance(key);
    ASSERT_TRUE(theirs.ok()) << theirs.status();
    if (*theirs == Handshake::Progress::received && !has_answered) {
      has_answered = true;
      incoming->answer({.kind = kHelloWelcome}, key, {});
      ASSERT_TRUE(incoming->advance(key).ok());
    }
    pollfd ready[] = {{outgoing.fd(), POLLIN, 0}, {incoming->fd(), POLLIN, 0}};
    poll(ready, 2, 100);
  }
  EXPECT_TRUE(outgoing.connected());
  EXPECT_FALSE(outgoing.expired());
}

TEST_F(RelayServiceTest, AHandshakeTellsWhoRefuses) {
  const JobKey key = *JobKey::random();
  const auto failure = [&](uint16_t relay, uint16_t port) {
    auto fd = begin_connect("lo", kLoopback, kLoopback, relay, {});
    // The kernel may say so at once.
    if (!fd.ok()) return Status(StatusCode::io_error, "");
    const RelayPreamble preamble{secret_, {{kLoopback, port}}};
    Handshake handshake({std::move(*fd), encode(preamble), {}, {}}, nullptr, 1, 0, "connect",
                        Deadline::after_s(10));
    handshake.begin({}, key, {});
    for (;;) {
      const auto progress = handshake.advance(key);
      if (!progress.ok()) {
        EXPECT_FALSE(handshake.connected());
        return progress.status();
      }
      if (handshake.expired()) return Status();
      pollfd ready{handshake.fd(), POLLIN, 0};
      poll(&ready, 1, 100);
    }
  };
  const uint16_t closed = peer_.port;
  peer_.fd.reset();
  EXPECT_EQ(failure(ports_[0], closed).code(), StatusCode::peer_lost);
  EXPECT_EQ(failure(closed, closed).code(), StatusCode::io_error);
}

// --- ways ---

// grid:3x3; rank r is on host r, and its NIC of level l is "l.r".
std::shared_ptr<RelayNetwork> network_of(int rank) {
  RelayNetwork::Options options{topology::Grid({3, 3}), {}, rank, {}, {}};
  for (uint32_t r = 0; r < 9; ++r) {
    options.host_of_rank.push_back(r);
    options.levels.emplace_back();
    for (uint16_t level = 0; level < 2; ++level) {
      options.levels.back().push_back(
          {str_cat("eth", level), str_cat("10.", level, ".0.", r + 1), 1000, 2000});
    }
  }
  return std::make_shared<RelayNetwork>(std::move(options), nullptr);
}

class WaysTest : public testing::Test {
 protected:
  // Of rank 0, on its NIC of level `rail`.
  Ways::Lane lane(int peer, size_t rail, size_t number = 0) {
    auto& rails = rails_[static_cast<size_t>(peer)];
    rails = {{"eth0", str_cat("10.0.0.", peer + 1), 77, 0},
             {"eth1", str_cat("10.1.0.", peer + 1), 78, 0}};
    return {peer, 2 * number + rail, number, str_cat("10.", rail, ".0.1"), &rails, rail};
  }

  bool has_other(const Ways::Lane& lane, bool refused = false) {
    return ways_.has_other(lane, &refused);
  }

  std::vector<std::vector<RailEndpoint>> rails_{9};
  std::shared_ptr<RelayNetwork> network_ = network_of(0);
  Ways ways_{network_, {0, 1, 2, 3, 4, 5, 6, 7, 8}};
};

TEST_F(WaysTest, NeighboursHaveOneWayOverTheirSwitch) {
  EXPECT_TRUE(ways_.choose(lane(1, 0)).hops.empty());
  EXPECT_FALSE(ways_.choose(lane(1, 0)).may_be_forwarded);
  bool refused = true;
  EXPECT_FALSE(ways_.has_other(lane(1, 0), &refused));
  EXPECT_TRUE(refused) << "by the neighbour itself";
}

TEST_F(WaysTest, KernelsComeFirstThenEachRouteOnce) {
  EXPECT_TRUE(ways_.choose(lane(4, 0)).may_be_forwarded);
  std::vector<std::vector<int>> relays;
  while (has_other(lane(4, 0))) relays.push_back(ways_.choose(lane(4, 0)).relays);
  EXPECT_EQ(relays, (std::vector<std::vector<int>>{{1}, {2, 5}}));
  EXPECT_TRUE(ways_.choose(lane(8, 0)).may_be_forwarded) << "the peer may be dead, or the NIC";
}

TEST_F(WaysTest, KernelsAreKnownToFailWhereARelayLeadsThereAfterThem) {
  ASSERT_TRUE(has_other(lane(4, 0)));
  ways_.succeeded(lane(4, 0));
  EXPECT_FALSE(ways_.choose(lane(8, 0)).may_be_forwarded) << "also to other peers";
}

TEST_F(WaysTest, ARouteEndsAtTheNicOfItsLastLevel) {
  ASSERT_TRUE(has_other(lane(4, 0)));
  const Ways::Way way = ways_.choose(lane(4, 0));
  EXPECT_EQ(way.hops, (std::vector<RelayHop>{{"10.0.0.2", 2000}, {"10.1.0.5", 78}}));
  const auto preamble = decode_relay_preamble(way.preamble);
  ASSERT_TRUE(preamble.ok()) << preamble.status();
  EXPECT_EQ(preamble->hops, (std::vector<RelayHop>{{"10.1.0.5", 78}}));
}

TEST_F(WaysTest, LanesOfADetourTakeDifferentNeighbours) {
  std::vector<std::vector<int>> relays;
  for (size_t number : {0u, 1u}) {
    ASSERT_TRUE(has_other(lane(1, 1, number)));
    relays.push_back(ways_.choose(lane(1, 1, number)).relays);
  }
  EXPECT_EQ(relays, (std::vector<std::vector<int>>{{3, 4}, {6, 7}}));
}

TEST_F(WaysTest, AWayThatWorksIsKeptAndOnesThatHaveFailedComeAgain) {
  ASSERT_TRUE(has_other(lane(4, 0)));
  ways_.succeeded(lane(4, 0));
  EXPECT_EQ(ways_.choose(lane(4, 0)).relays, (std::vector<int>{1}));
  while (has_other(lane(4, 0))) {
  }
  EXPECT_EQ(ways_.choose(lane(4, 0)).relays, (std::vector<int>{1})) << "from the beginning";
}

TEST_F(WaysTest, OnlyARelayOrANeighbourTellsThatThePeerRefuses) {
  (void)ways_.choose(lane(4, 0));
  bool refused = true;
  EXPECT_TRUE(ways_.has_other(lane(4, 0), &refused)) << "another host may have refused";
  refused = true;
  EXPECT_FALSE(ways_.has_other(lane(4, 0), &refused));
  EXPECT_TRUE(refused);
  EXPECT_TRUE(ways_.choose(lane(4, 0)).may_be_forwarded) << "nothing says that kernels fail";
}

TEST_F(WaysTest, KernelsThatHaveForwardedAreNotTakenForOnesThatDoNot) {
  (void)ways_.choose(lane(4, 0));
  ways_.succeeded(lane(4, 0));
  EXPECT_TRUE(has_other(lane(4, 0))) << "a cable, perhaps";
  EXPECT_TRUE(ways_.choose(lane(8, 0)).may_be_forwarded);
}

}  // namespace
}  // namespace dmlcomm::transport::tcp
