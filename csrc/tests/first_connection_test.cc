// The first connection to a peer: repeated while it may still come about, given up at once if
// nobody listens.

#include <gtest/gtest.h>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <functional>
#include <future>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/unique_fd.h"
#include "engine/communicator.h"
#include "tests/notes.h"
#include "tests/ranks.h"
#include "transport/address.h"
#include "transport/rail_repair.h"
#include "transport/socket.h"

namespace dmlcomm::tests {
namespace {

using engine::Communicator;
using transport::RailEndpoint;

constexpr int kNumRanks = 2;
constexpr int kWithoutEnd = 1 << 20;

sockaddr_in loopback(uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(port);
  return address;
}

// A port of loopback that leads to another one, but resets the first connections, and says nothing
// before `opens`.
class Relay {
 public:
  Relay(uint16_t target, int num_resets, std::shared_future<void> opens = {})
      : target_(target), num_resets_(num_resets), opens_(std::move(opens)) {
    sockaddr_in address = loopback(0);
    socklen_t length = sizeof(address);
    auto* any = reinterpret_cast<sockaddr*>(&address);
    EXPECT_EQ(bind(listener_.get(), any, length), 0);
    EXPECT_EQ(listen(listener_.get(), 16), 0);
    EXPECT_EQ(getsockname(listener_.get(), any, &length), 0);
    port_ = ntohs(address.sin_port);
    threads_.emplace_back([this] { accept_all(); });
  }

  // The ranks have closed their ends.
  ~Relay() {
    shutdown(listener_.get(), SHUT_RDWR);
    for (std::thread& thread : threads_) thread.join();
  }

  uint16_t port() const { return port_; }
  int num_accepted() const { return num_accepted_; }
  // Connections whose first bytes have come before it opened.
  int num_asked() const { return num_asked_; }

 private:
  void accept_all() {
    for (;;) {
      UniqueFd from(accept(listener_.get(), nullptr, nullptr));
      if (!from.valid()) return;
      if (num_accepted_++ < num_resets_) {
        const linger reset{1, 0};
        setsockopt(from.get(), SOL_SOCKET, SO_LINGER, &reset, sizeof(reset));
        continue;
      }
      if (opens_.valid()) wait_after_question(from.get());
      UniqueFd to(socket(AF_INET, SOCK_STREAM, 0));
      const sockaddr_in address = loopback(target_);
      if (connect(to.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
        continue;
      }
      sockets_.push_back(std::move(from));
      const int a = sockets_.back().get();
      sockets_.push_back(std::move(to));
      const int b = sockets_.back().get();
      threads_.emplace_back([a, b] { copy(a, b); });
      threads_.emplace_back([a, b] { copy(b, a); });
    }
  }

  void wait_after_question(int from) {
    char byte;
    if (recv(from, &byte, 1, MSG_PEEK) == 1) ++num_asked_;
    opens_.wait();
  }

  static void copy(int from, int to) {
    std::array<char, 4096> bytes;
    for (;;) {
      const ssize_t got = read(from, bytes.data(), bytes.size());
      if (got <= 0 || send(to, bytes.data(), static_cast<size_t>(got), MSG_NOSIGNAL) != got) break;
    }
    shutdown(from, SHUT_RD);
    shutdown(to, SHUT_WR);
  }

  const uint16_t target_;
  const int num_resets_;
  const std::shared_future<void> opens_;
  const UniqueFd listener_{socket(AF_INET, SOCK_STREAM, 0)};
  uint16_t port_ = 0;
  std::atomic<int> num_accepted_ = 0;
  std::atomic<int> num_asked_ = 0;
  std::list<UniqueFd> sockets_;     // of the first thread
  std::list<std::thread> threads_;  // the first one adds others
};

// Gives the ranks other ports of each other than they publish.
class OtherPorts final : public transport::Rendezvous {
 public:
  using Change = std::function<uint16_t(uint16_t port)>;
  explicit OtherPorts(Change change) : change_(std::move(change)) {}

  Result<std::vector<std::string>> exchange(const std::string& name, int rank, int num_ranks,
                                            const std::string& value,
                                            std::chrono::milliseconds timeout) override {
    if (name != "rails") return inner_->exchange(name, rank, num_ranks, value, timeout);
    std::vector<RailEndpoint> rails = transport::decode_rails(value).value();
    for (RailEndpoint& rail : rails) rail.port = change_(rail.port);
    return inner_->exchange(name, rank, num_ranks, transport::encode_rails(rails), timeout);
  }

 private:
  const Change change_;
  const std::shared_ptr<transport::Rendezvous> inner_ = memory_rendezvous();
};

std::vector<std::shared_ptr<Communicator>> join(double peer_timeout_s, OtherPorts::Change change) {
  Config config;
  config.transport = TransportChoice::tcp;
  config.peer_timeout_s = peer_timeout_s;
  const auto rendezvous = std::make_shared<OtherPorts>(std::move(change));
  std::vector<std::future<std::shared_ptr<Communicator>>> joining;
  for (int rank = 0; rank < kNumRanks; ++rank) {
    engine::CommunicatorOptions options;
    options.rank = rank;
    options.num_ranks = kNumRanks;
    options.name = "test";
    options.config = config;
    options.timeout = std::chrono::seconds(60);
    joining.push_back(std::async(std::launch::async, [options, rendezvous] {
      return Communicator::create(options, rendezvous).value();
    }));
  }
  std::vector<std::shared_ptr<Communicator>> group;
  for (auto& rank : joining) group.push_back(rank.get());
  return group;
}

// What every rank gets of an all_reduce of ones.
std::vector<Status> all_reduce(const std::vector<std::shared_ptr<Communicator>>& group) {
  std::vector<std::vector<float>> data(group.size(), std::vector<float>(1000, 1));
  std::vector<engine::OperationPtr> operations;
  for (size_t rank = 0; rank < group.size(); ++rank) {
    operations.push_back(
        group[rank]->all_reduce(data[rank].data(), 1000, DType::f32, ReduceOp::sum, {}));
  }
  std::vector<Status> statuses;
  for (size_t rank = 0; rank < group.size(); ++rank) {
    statuses.push_back(operations[rank]->wait(std::chrono::milliseconds(0)));
    if (!statuses.back().ok()) continue;
    EXPECT_EQ(data[rank], std::vector<float>(1000, kNumRanks));
  }
  return statuses;
}

TEST(FirstConnectionTest, IsMadeAgainAfterResets) {
  std::mutex mutex;
  std::list<Relay> relays;
  auto group = join(30, [&](uint16_t port) {
    std::lock_guard lock(mutex);
    return relays.emplace_back(port, 3).port();
  });
  for (const Status& status : all_reduce(group)) EXPECT_TRUE(status.ok()) << status;
  int num_accepted = 0;
  for (const Relay& relay : relays) num_accepted += relay.num_accepted();
  EXPECT_GT(num_accepted, 3);
  for (auto& rank : group) rank->close();
}

TEST(FirstConnectionTest, IsMadeWhenThePeerIsLate) {
  std::promise<void> comes;
  const std::shared_future<void> opens = comes.get_future().share();
  std::mutex mutex;
  std::list<Relay> relays;
  auto group = join(30, [&](uint16_t port) {
    std::lock_guard lock(mutex);
    return relays.emplace_back(port, 0, opens).port();
  });
  auto statuses = std::async(std::launch::async, [&] { return all_reduce(group); });
  const Deadline deadline = Deadline::after_s(30);
  // A rank has said who it is, and waits for the answer.
  const auto is_asked = [](const Relay& relay) { return relay.num_asked() > 0; };
  while (std::none_of(relays.begin(), relays.end(), is_asked) && !deadline.expired()) {
    std::this_thread::yield();
  }
  EXPECT_FALSE(deadline.expired());
  EXPECT_EQ(statuses.wait_for(std::chrono::seconds(0)), std::future_status::timeout);
  comes.set_value();
  for (const Status& status : statuses.get()) EXPECT_TRUE(status.ok()) << status;
  for (auto& rank : group) rank->close();
}

TEST(FirstConnectionTest, IsGivenUpAfterThePeersTimeout) {
  std::mutex mutex;
  std::list<Relay> relays;
  auto group = join(0.5, [&](uint16_t port) {
    std::lock_guard lock(mutex);
    return relays.emplace_back(port, kWithoutEnd).port();
  });
  for (const Status& status : all_reduce(group)) {
    EXPECT_EQ(status.code(), StatusCode::peer_lost) << status;
    EXPECT_NE(status.message().find("DMLCOMM_PEER_TIMEOUT_S"), std::string::npos) << status;
  }
  for (auto& rank : group) rank->close();
}

// The test would last an hour if it waited for the peer's timeout.
TEST(FirstConnectionTest, IsGivenUpAtOnceIfNobodyListens) {
  constexpr uint16_t kNobody = 1;
  auto group = join(3600, [&](uint16_t) { return kNobody; });
  for (const Status& status : all_reduce(group)) {
    EXPECT_EQ(status.code(), StatusCode::peer_lost) << status;
    EXPECT_NE(status.message().find("refused"), std::string::npos) << status;
  }
  for (auto& rank : group) rank->close();
}

// Nobody is ever reached.
class NoTransport : public transport::Transport {
 public:
  bool reaches(int) const override { return true; }
  Status meet(const std::vector<int>&, transport::Rendezvous&, transport::Admission&) override {
    return Status();
  }
  bool accepts(int) override { return false; }
  size_t num_rails(int) const override { return 1; }
  Result<transport::Attempt> connect(int, size_t) override {
    return Status(StatusCode::io_error, "no route");
  }
  std::string route(int, size_t) override { return "connect"; }
  Result<std::unique_ptr<transport::Channel>> open(int, size_t, bool,
                                                   transport::Handshake&) override {
    return Status(StatusCode::io_error, "no route");
  }
};

// They refer to each other.
struct Parts {
  transport::RailRepair repair;
  transport::Admission admission;
};

TEST(FirstConnectionTest, IsNotGivenUpForTheTimeInWhichTheProcessWasStopped) {
  constexpr int64_t kHour = 3600 * kNsPerS;
  transport::Job job;
  job.num_ranks = kNumRanks;
  job.hosts.resize(kNumRanks);
  job.config.peer_timeout_s = 1800;
  Notes notes;
  job.events = &notes;
  NoTransport nobody;
  std::vector<transport::RailCounters> counters(1);
  std::vector<transport::Peer> peers(kNumRanks);
  transport::Peer& peer = peers[1];
  transport::EventLoop loop;
  ASSERT_TRUE(loop.open().ok());
  Parts parts{{job, loop, parts.admission, peers, [](int) {}}, {job, loop, parts.repair, 1}};
  peer.transport = &nobody;
  peer.counters = counters.data();
  peer.link = std::make_unique<transport::Link>(parts.repair.link_options(1));
  peer.connections.resize(1);
  peer.connecting_since_ns = now_ns() - kHour;
  parts.repair.connect(1);
  parts.repair.give_more_time(kHour);
  parts.repair.tick(now_ns());
  EXPECT_EQ(peer.link->state(), transport::Link::State::connecting);
  peer.connecting_since_ns -= kHour;
  parts.repair.tick(now_ns());
  EXPECT_EQ(peer.link->state(), transport::Link::State::failed);
}

class OpenTransport final : public NoTransport {
  bool accepts(int) override { return true; }
};

// Where rank 1 comes to an admission.
class Door {
 public:
  Door(transport::Admission& admission, OpenTransport& open) : open_(open) {
    auto listener = transport::listen_unix(name_);
    EXPECT_TRUE(listener.ok()) << listener.status();
    EXPECT_TRUE(admission.listen(std::move(*listener), open).ok());
  }

  UniqueFd connect() const { return std::move(*transport::connect_unix(name_)); }

  // Its request is sent.
  std::unique_ptr<transport::Handshake> knock(const transport::JobKey& key, uint16_t lane) const {
    const Deadline end = Deadline::after_s(60);
    auto rank = std::make_unique<transport::Handshake>(transport::Attempt{connect(), {}, end, end},
                                                       &open_, 0, lane, "connect", end);
    transport::Hello hello;
    hello.challenge = transport::random_challenge();
    hello.rank = 1;
    hello.num_ranks = 2;
    hello.lane = lane;
    rank->begin(hello, key, {});
    EXPECT_TRUE(rank->advance(key).ok());
    return rank;
  }

 private:
  OpenTransport& open_;
  const std::string name_ = str_cat("dmlcomm-test-", getpid());
};

// Lets nobody in, and counts who has proved to be a rank.
class Doorman final : public transport::Admission::Owner {
 public:
  Answer answer(const transport::Handshake&) override {
    ++num_ranks_;
    return Answer::none;
  }
  void admitted(transport::Handshake&) override { ADD_FAILURE(); }
  void yielded(int, size_t) override { ADD_FAILURE(); }
  void failed(int, size_t, const Status& status, bool) override { ADD_FAILURE() << status; }
  int num_ranks() const { return num_ranks_; }

 private:
  int num_ranks_ = 0;
};

TEST(FirstConnectionTest, IsNotDroppedForStrangersWhoComeInItsMiddle) {
  transport::Job job;
  job.num_ranks = 2;
  job.hosts.resize(2);
  job.key = *transport::JobKey::random();
  transport::EventLoop loop;
  ASSERT_TRUE(loop.open().ok());
  OpenTransport open;
  Doorman doorman;
  transport::Admission admission(job, loop, doorman, 1);
  const Door door(admission, open);

  const auto rank = door.knock(job.key, 0);
  loop.look();  // its request has come
  std::vector<UniqueFd> strangers;
  for (int i = 0; i < 200; ++i) strangers.push_back(door.connect());
  loop.look();
  ASSERT_TRUE(rank->advance(job.key).ok());
  loop.look();
  EXPECT_EQ(doorman.num_ranks(), 1);
}

TEST(FirstConnectionTest, IsToldOnceWhenItIsOneTooMany) {
  transport::Job job;
  job.num_ranks = 2;
  job.hosts.resize(2);
  job.hosts[1].host_name = "elsewhere";
  job.key = *transport::JobKey::random();
  Notes notes;
  job.events = &notes;
  OpenTransport open;
  std::vector<transport::RailCounters> counters(1);
  std::vector<transport::Peer> peers(2);
  peers[1].transport = &open;
  peers[1].counters = counters.data();
  transport::EventLoop loop;
  ASSERT_TRUE(loop.open().ok());
  Parts parts{{job, loop, parts.admission, peers, [](int) { ADD_FAILURE(); }},
              {job, loop, parts.repair, 1}};
  const Door door(parts.admission, open);
  testing::internal::CaptureStderr();
  for (uint16_t lane : {1, 2}) {
    const auto rank = door.knock(job.key, lane);
    loop.look();
    ASSERT_TRUE(rank->advance(job.key).ok());
    loop.look();
  }
  const std::string log = testing::internal::GetCapturedStderr();
  EXPECT_NE(log.find("rank 1 on host elsewhere makes connection 2 to this rank, where 1 is the"),
            std::string::npos)
      << log;
  EXPECT_EQ(log.find("connection 3"), std::string::npos) << log;
}

}  // namespace
}  // namespace dmlcomm::tests
