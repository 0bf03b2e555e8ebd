// What ranks publish of their hosts, and how connections fail before they are trusted: refused, or
// broken later.

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/str_cat.h"
#include "tests/ranks.h"
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
  HostAddress address = host_on("boot", 7, 12);
  address.tunes = false;
  address.probes = false;
  address.ticket_connections = 4;
  address.transport = "ucx";
  const auto decoded = HostAddress::decode(address.encode());
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  EXPECT_EQ(decoded->host_id, "boot:7");
  EXPECT_EQ(decoded->machine_id(), "boot");
  EXPECT_EQ(decoded->num_cores, 12);
  EXPECT_EQ(decoded->cores, "f");
  EXPECT_FALSE(decoded->tunes);
  EXPECT_FALSE(decoded->probes);
  EXPECT_EQ(decoded->ticket_connections, 4u);
  EXPECT_EQ(decoded->transport, "ucx");
}

std::string error_of(const std::string& text) {
  return HostAddress::decode(text).status().message();
}

TEST(HostAddressTest, AnotherVersionIsToldFromADamagedText) {
  const std::string text = host_on("boot", 7, 12).encode();
  const size_t end = text.find(' ');
  for (const std::string& other : {text.substr(end + 1), "dmlcomm/1" + text.substr(end), {}}) {
    EXPECT_TRUE(error_of(other).starts_with("another version of dmlcomm")) << error_of(other);
  }
  for (const char* rest : {" boot:7 h7 1 socket 1 f 1 1 3", " boot:7 h7 1 socket 0 f 1 1 3 tcp",
                           " boot:7 h7 1 socket two f 1 1 3 tcp", " h7", ""}) {
    const std::string damaged = text.substr(0, end) + rest;
    EXPECT_NE(error_of(damaged).find("malformed host address"), std::string::npos) << damaged;
  }
}

TEST(HostAddressTest, RanksThatBytesOfOneKindConnectMayHaveOtherTransports) {
  const auto check = [](const std::vector<std::string>& transports) {
    std::vector<HostAddress> hosts;  // two ranks on the first host, the others on the second
    for (const std::string& transport : transports) {
      hosts.push_back(host_on(hosts.size() < 2 ? "a" : "b", 1, 1));
      hosts.back().transport = transport;
    }
    return check_same_settings(hosts);
  };
  using Transports = std::vector<std::string>;
  for (const Transports& fine : {Transports{"auto", "auto", "tcp", "tcp"},
                                 {"auto", "shm"},
                                 {"ucx", "ucx", "ucx"},
                                 {"tcp", "tcp", "auto", "auto"}}) {
    EXPECT_TRUE(check(fine).ok()) << check(fine);
  }
  for (const Transports& wrong : {Transports{"auto", "tcp"},
                                  {"ucx", "tcp"},
                                  {"shm", "ucx"},
                                  {"auto", "auto", "ucx"},
                                  {"auto", "auto", "auto", "tcp"}}) {
    EXPECT_EQ(check(wrong).code(), StatusCode::invalid_argument);
  }
  EXPECT_EQ(check({"tcp", "tcp", "auto", "tcp"}).message(),
            "DMLCOMM_TRANSPORT differs: rank 2 on host h1 has auto, and rank 3 on host h1 tcp; set "
            "it alike");
}

TEST(HostAddressTest, HostsHaveTheSameSettingsAndRanksOfOneHostMayDiffer) {
  HostAddress one = host_on("a", 1, 1), beside = host_on("a", 1, 1), other = host_on("b", 1, 1);
  one.ticket_connections = other.ticket_connections = 3;
  beside.ticket_connections = 0;
  EXPECT_TRUE(check_same_settings({one, beside}).ok());
  EXPECT_TRUE(check_same_settings({one, other}).ok());
  for (const auto& hosts : {std::vector{one, beside, other}, std::vector{one, other, beside}}) {
    const Status status = check_same_settings(hosts);
    EXPECT_EQ(status.code(), StatusCode::invalid_argument);
    EXPECT_NE(status.message().find("rank 0 on host h1 has 3, and rank"), std::string::npos)
        << status;
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

TEST(HostAddressTest, CopiesOfAVirtualMachineAreOtherHosts) {
  EXPECT_EQ(host_id_of("boot", 7, "02ab"), host_id_of("boot", 7, "02ab"));
  EXPECT_NE(host_id_of("boot", 7, "02ab"), host_id_of("boot", 7, "02ac"));
  EXPECT_NE(host_id_of("", 7, "02ab"), host_id_of("", 7, "02ab")) << "an unknown kernel";
  EXPECT_EQ(local_host_address().host_id, local_host_address().host_id);
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
    handshake.begin({}, key_, {});
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
  handshake.begin({}, key_, {});
  EXPECT_EQ(failure_of(handshake).code(), StatusCode::io_error);
  EXPECT_FALSE(handshake.connected());
}

// The two ends of a connection, each with its idea of the job's secret.
class AdmissionTest : public testing::Test {
 protected:
  static constexpr uint32_t kLane = 3;

  void SetUp() override {
    int fds[2];
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fds), 0);
    connecting_ = UniqueFd(fds[0]);
    accepting_ = UniqueFd(fds[1]);
  }

  static Handshake side(UniqueFd fd, int peer, const JobKey& key, std::vector<int> fds) {
    Handshake handshake({std::move(fd), {}, {}, {}}, nullptr, peer, kLane, "connect",
                        Deadline::after_s(10));
    Hello own;
    own.challenge = random_challenge();
    own.rank = peer >= 0 ? 0 : 1;
    own.lane = peer >= 0 ? kLane : 0;
    handshake.begin(own, key, std::move(fds));
    return handshake;
  }
  Handshake connecting(const JobKey& key, std::vector<int> fds = {}) {
    return side(std::move(connecting_), 1, key, std::move(fds));
  }
  Handshake accepting(const JobKey& key) { return side(std::move(accepting_), -1, key, {}); }

  // What has come there, which is left where it is.
  static std::vector<std::byte> bytes_at(int fd) {
    std::vector<std::byte> bytes(4096);
    const ssize_t got = recv(fd, bytes.data(), bytes.size(), MSG_PEEK);
    bytes.resize(got > 0 ? static_cast<size_t>(got) : 0);
    return bytes;
  }

  UniqueFd connecting_, accepting_;
  const JobKey key_ = *JobKey::random();
};

TEST_F(AdmissionTest, BothSidesProveThatTheyKnowTheSecretBeforeDescriptorsGo) {
  Handshake a = connecting(key_, {STDERR_FILENO}), b = accepting(key_);
  EXPECT_EQ(*a.advance(key_), Handshake::Progress::connected) << "request";
  EXPECT_EQ(*b.advance(key_), Handshake::Progress::connected) << "challenge";
  EXPECT_TRUE(b.take_received_fds().empty());
  EXPECT_EQ(*a.advance(key_), Handshake::Progress::connected) << "confirm";
  ASSERT_EQ(*b.advance(key_), Handshake::Progress::received);
  EXPECT_EQ(b.received().lane, kLane);
  EXPECT_EQ(b.take_received_fds().size(), 1u);
  b.answer({.rank = 1, .lane = kLane, .kind = kHelloWelcome}, key_, {STDERR_FILENO});
  ASSERT_EQ(*b.advance(key_), Handshake::Progress::received);
  ASSERT_EQ(*a.advance(key_), Handshake::Progress::received);
  EXPECT_EQ(a.received().kind, kHelloWelcome);
  EXPECT_EQ(a.take_received_fds().size(), 1u);
  for (const std::byte byte : bytes_at(b.fd())) ADD_FAILURE() << std::to_integer<int>(byte);
}

TEST_F(AdmissionTest, TheSecretDoesNotTravel) {
  Handshake a = connecting(key_);
  ASSERT_TRUE(a.advance(key_).ok());
  const std::vector<std::byte> request = bytes_at(accepting_.get());
  ASSERT_EQ(request.size(), kHeaderBytes + sizeof(Hello));
  EXPECT_EQ(std::search(request.begin(), request.end(), key_.secret.begin(), key_.secret.end()),
            request.end());
}

TEST_F(AdmissionTest, WhoKnowsOnlyTheStoreIsRefusedByEitherSide) {
  JobKey mixed = key_;
  mixed.mix_in("what the user alone knows");
  EXPECT_NE(mixed.secret, key_.secret);
  Handshake stranger = connecting(key_), rank = accepting(mixed);
  ASSERT_TRUE(stranger.advance(key_).ok());
  EXPECT_EQ(rank.advance(mixed).status().code(), StatusCode::protocol_error);
  EXPECT_TRUE(bytes_at(stranger.fd()).empty()) << "a stranger is told nothing";

  SetUp();
  Handshake caller = connecting(mixed, {STDERR_FILENO});
  ASSERT_TRUE(caller.advance(mixed).ok());
  Handshake listener = accepting(mixed);
  ASSERT_TRUE(listener.advance(mixed).ok());  // its challenge, as the stranger would see it...
  JobKey other = key_;
  other.mix_in("another secret");
  EXPECT_EQ(caller.advance(other).status().code(), StatusCode::protocol_error);
  EXPECT_TRUE(bytes_at(listener.fd()).empty()) << "...and no descriptors go";
}

TEST_F(AdmissionTest, CapturedHellosAreOfNoUseOnAnotherConnection) {
  std::vector<std::byte> captured;
  {
    Handshake a = connecting(key_), b = accepting(key_);
    ASSERT_TRUE(a.advance(key_).ok());
    captured = bytes_at(b.fd());
    ASSERT_TRUE(b.advance(key_).ok());
    ASSERT_TRUE(a.advance(key_).ok());
    const std::vector<std::byte> confirm = bytes_at(b.fd());
    captured.insert(captured.end(), confirm.begin(), confirm.end());
    ASSERT_EQ(*b.advance(key_), Handshake::Progress::received);
  }
  SetUp();
  Handshake b = accepting(key_);
  ASSERT_EQ(write(connecting_.get(), captured.data(), captured.size()),
            static_cast<ssize_t>(captured.size()));
  EXPECT_EQ(b.advance(key_).status().code(), StatusCode::protocol_error);
}

// Of all processes in this network namespace.
std::set<std::string> names_of_unix_sockets() {
  std::ifstream table("/proc/net/unix");
  std::set<std::string> names;
  for (std::string line; std::getline(table, line);) {
    const size_t name = line.find("@dmlcomm-");
    if (name != std::string::npos) names.insert(line.substr(name));
  }
  return names;
}

// Who sees that of one rank cannot take those of others before these begin.
TEST(MeshTest, NamesOfUnixSocketsDoNotFollowFromThoseOfOtherRanks) {
  constexpr int kRanks = 3;
  const std::set<std::string> before = names_of_unix_sockets();
  Config config;
  config.transport = TransportChoice::shm;
  const auto group = tests::make_group(kRanks, config);
  const std::set<std::string> after = names_of_unix_sockets();
  std::vector<std::string> own;
  std::set_difference(after.begin(), after.end(), before.begin(), before.end(),
                      std::back_inserter(own));
  EXPECT_GE(own.size(), size_t{kRanks});
  std::set<std::string> random;
  for (const std::string& name : own) {
    EXPECT_TRUE(random.insert(name.substr(0, name.rfind('-'))).second) << name;
  }
  for (const auto& communicator : group) communicator->close();
}

TEST(JobKeyTest, AMarkShowsTheSameSecretAndNothingElse) {
  EXPECT_EQ(JobKey::mark_of("secret", "of rank 0"), JobKey::mark_of("secret", "of rank 0"));
  EXPECT_NE(JobKey::mark_of("secret", "of rank 0"), JobKey::mark_of("secret", "of rank 1"));
  EXPECT_NE(JobKey::mark_of("secret", "of rank 0"), JobKey::mark_of("Secret", "of rank 0"));
  EXPECT_EQ(JobKey::mark_of("", "of rank 0"), "none");
}

}  // namespace
}  // namespace dmlcomm::transport
