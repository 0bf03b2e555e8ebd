// Servers that hold copies of each other's shards, and workers that go: see ps_copies_test for the
// copies themselves.
#include <gtest/gtest.h>

#include <algorithm>
#include <future>
#include <thread>

#include "tests/ps_cluster.h"

namespace dmlcomm::ps {
namespace {

using namespace tests;

class PsReplicas : public ::testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Transports, PsReplicas, ::testing::Values("single_copy", "ring", "tcp"),
                         [](const auto& info) { return info.param; });

// It creates a model while the servers give it up, which counts it once more.
TEST_P(PsReplicas, AWorkerThatIsSettledCountsNoMoreAndIsRefused) {
  Cluster cluster(1, 2, config_of(GetParam()), 0, true);
  std::vector<float> zeros(3);
  cluster.create(spec_of(3, "add", Combine::sum), zeros);
  Server& server = *cluster.servers[0];
  cluster.clients[1]->close();
  const auto gone = server.wait_unsettled(std::chrono::seconds(60));
  ASSERT_TRUE(gone.contains(1));
  EXPECT_TRUE(gone.at(1).has_left);
  ASSERT_TRUE(server.end_worker(1, kIncarnation, "it has gone"));
  server.drop_settled(1, kIncarnation);
  EXPECT_TRUE(server.hold(kModel, 1).is_new);
  server.settle(1, kIncarnation);
  EXPECT_FALSE(server.model_status()[0].clocks.contains(1));
  PairOptions join;
  join.other = 1;
  join.timeout = std::chrono::milliseconds(100);  // nobody comes
  const auto try_to_join = [&](uint64_t incarnation) {
    return server.join(join, tests::memory_rendezvous(), 0, incarnation);
  };
  EXPECT_NE(try_to_join(kIncarnation).message().find("given up"), std::string::npos);
  EXPECT_EQ(try_to_join(kIncarnation + 1).message().find("given up"), std::string::npos);
}

// A server that comes back may be met by one that the others have given up.
TEST_P(PsReplicas, AWorkerThatAnotherServerHasSettledEnds) {
  Cluster cluster(1, 2, config_of(GetParam()), 0, true);
  std::vector<float> zeros(3);
  cluster.create(spec_of(3, "add", Combine::sum), zeros);
  std::vector<float> out(3);
  expect_done(cluster.clients[1]->pull(kModel, buffers_of(out), 0, {}));
  Server& server = *cluster.servers[0];
  server.take_settled({{0, kIncarnation + 1}, {1, kIncarnation}});
  server.take_settled({{1, kIncarnation - 1}});  // from one that has heard less
  EXPECT_FALSE(server.refused(1, kIncarnation).reason.empty());
  const auto gone = server.unsettled();
  EXPECT_FALSE(gone.contains(0));
  ASSERT_TRUE(gone.contains(1));
  EXPECT_FALSE(gone.at(1).has_left);
  EXPECT_TRUE(server.end_worker(0, kIncarnation, ""));  // as another server has seen it leave
  EXPECT_TRUE(server.unsettled().at(0).has_left);
}

// The other servers have pushes of it, perhaps.
TEST_P(PsReplicas, AWorkerThatHasGivenNoCommandIsSettledAsWell) {
  Cluster cluster(1, 1, config_of(GetParam()), 0, true);
  Server& server = *cluster.servers[0];
  EXPECT_TRUE(server.end_worker(0, kIncarnation, "another server has lost it"));
  EXPECT_TRUE(server.unsettled().contains(0));
}

TEST_P(PsReplicas, AWorkerThatConnectsAnewInVainIsSettled) {
  Cluster cluster(1, 1, config_of(GetParam()), 0, true);
  Server& server = *cluster.servers[0];
  PairOptions join;
  join.timeout = std::chrono::milliseconds(100);  // nobody comes
  EXPECT_FALSE(server.join(join, tests::memory_rendezvous(), 0, kIncarnation).ok());
  EXPECT_TRUE(server.unsettled().contains(0));
}

TEST_P(PsReplicas, AWorkerThatIsGivenUpWhileItConnectsIsRefused) {
  const Config config = config_of(GetParam());
  ServerOptions options{0, 1, 1, config};
  options.settles = true;
  Server server(options);
  Client client(ClientOptions{0, 1, 1, config});
  const auto rendezvous = tests::memory_rendezvous();
  auto joined = std::async(std::launch::async,
                           [&] { return server.join(PairOptions(), rendezvous, 0, kIncarnation); });
  const Deadline deadline = Deadline::after_s(60);
  while (!server.end_worker(0, kIncarnation, "") && !deadline.expired()) std::this_thread::yield();
  EXPECT_TRUE(server.unsettled().contains(0));
  (void)client.connect(PairOptions(), rendezvous);
  const Status status = joined.get();
  EXPECT_NE(status.message().find("given up"), std::string::npos) << status;
  EXPECT_TRUE(server.unsettled().contains(0));
  EXPECT_FALSE(server.refused(0, kIncarnation).passes);
  EXPECT_TRUE(server.refused(0, kIncarnation + 1).passes);
}

// Its first command may be read at once.
TEST_P(PsReplicas, AWorkerThatConnectsIsNotTakenForGone) {
  Cluster cluster(1, 1, config_of(GetParam()), 0, true);
  std::vector<float> zeros(3);
  cluster.create(spec_of(3, "add", Combine::sum), zeros);
  std::atomic<bool> ends{false};
  auto seen = std::async(std::launch::async, [&] {
    bool was_gone = false;
    while (!ends.load()) was_gone |= !cluster.servers[0]->unsettled().empty();
    return was_gone;
  });
  for (int i = 0; i < 50; ++i) cluster.connect(0, 0);
  ends.store(true);
  EXPECT_FALSE(seen.get());
}

TEST_P(PsReplicas, WithAReplicaNoAcknowledgedPushIsLost) {
  constexpr uint64_t kCount = 400'000;
  Cluster cluster(2, 2, config_of(GetParam()));
  ModelSpec spec = spec_of(kCount, "add", Combine::sum);
  spec.replicas = 1;
  std::vector<float> zeros(kCount);
  cluster.create(spec, zeros);
  std::atomic<uint32_t> steps{0};
  auto killer = std::async(std::launch::async, [&] {
    while (steps.load() < 10) std::this_thread::yield();
    cluster.servers[0]->close();
  });
  cluster.run([&](uint32_t, Client& client) {
    std::vector<float> one(kCount, 1);
    std::vector<float> out(kCount);
    for (uint32_t step = 0; step < 30; ++step) {
      const auto operation = client.push_pull(kModel, buffers_of(one), buffers_of(out), 0, {});
      if ((*operation)->wait(Deadline::after_s(60)).code() == StatusCode::peer_lost) {
        EXPECT_EQ((*operation)->lost(), std::vector<uint32_t>{0});
        client.confirm_lost(0, 0);
        client.retry(*operation);
      }
      expect_done(operation);
      steps.fetch_add(1);
      for (uint64_t i = 0; i < kCount; ++i) {
        ASSERT_EQ(out[i], 2 * static_cast<float>(step + 1)) << "element " << i;
      }
    }
  });
  killer.get();
}

// Another worker may reach it: then its copy would lack what the replica gets.
TEST_P(PsReplicas, APushIsNotDoneBeforeItIsKnownWhetherALostServerIsLostForAll) {
  constexpr uint64_t kCount = 1000;
  Cluster cluster(2, 1, config_of(GetParam()));
  ModelSpec spec = spec_of(kCount, "add", Combine::sum);
  spec.replicas = 1;
  std::vector<float> zeros(kCount);
  cluster.create(spec, zeros);
  Client& client = *cluster.clients[0];
  std::vector<float> one(kCount, 1);
  std::vector<float> out(kCount);
  cluster.servers[0]->close();
  const auto operation = client.push_pull(kModel, buffers_of(one), buffers_of(out), 0, {}).value();
  for (int i = 0; i < 2; ++i) {
    expect_lost(operation, {0});
  }
  EXPECT_TRUE(client.lost_for_all().empty());
  client.confirm_lost(0, 0);
  EXPECT_EQ(client.lost_for_all(), std::vector<uint32_t>{0});
  client.retry(operation);
  EXPECT_TRUE(operation->wait(Deadline::after_s(60)).ok());
  for (float value : out) ASSERT_EQ(value, 1);
}

// What a worker says of lost servers, in a message that it could not send by a client.
TEST_P(PsReplicas, LossesAreBelievedOfServersThatThereAreAndThatHaveReplicas) {
  const Config config = config_of(GetParam());
  for (uint32_t replicas : {0, 1}) {
    Cluster cluster(2, 1, config);
    ModelSpec spec = spec_of(10, "add", Combine::sum);
    spec.replicas = replicas;
    std::vector<float> zeros(10);
    cluster.create(spec, zeros);
    uint32_t worker = 1;
    const auto tell = [&](uint32_t lost) {
      const auto rendezvous = tests::memory_rendezvous();
      PairOptions join, connect;
      join.other = worker;
      auto joined = std::async(std::launch::async,
                               [&] { return cluster.servers[0]->join(join, rendezvous); });
      const auto pair = meet(kWorkerRank, worker++, connect, config, rendezvous);
      EXPECT_TRUE(pair.ok() && joined.get().ok());
      Command command;
      command.kind = CommandKind::leave;
      command.lives[lost] = 1;
      CommandBytes bytes = encode(command);
      AnswerBytes answer;
      const auto answered = (*pair)->recv({answer.data(), answer.size()}, kServerRank, kAnswer, {});
      (void)(*pair)->send({bytes.data(), bytes.size()}, kServerRank, kCommand, {});
      EXPECT_TRUE(answered->wait(std::chrono::seconds(60)).ok());
      (*pair)->close();
      return decode_answer(answer).value().lives;
    };
    EXPECT_EQ(tell(5), Lives{});
    EXPECT_EQ(tell(1)[1], replicas);
    EXPECT_EQ(cluster.servers[0]->lost_servers().size(), replicas);
  }
}

// What a server keeps of the pushes of worker 0 to its own shard, for the other copy.
size_t bytes_kept(Server& server, uint32_t shard, const ModelSpec& spec) {
  ServerOptions options{shard, spec.num_servers, 1, Config()};
  Server nothing(options);
  EXPECT_TRUE(nothing.create_model(kModel, spec, std::move(make_rule("add", {}).value())).ok());
  const auto known = nothing.known_pushes(kModel, shard, 0, 0, SIZE_MAX);
  std::vector<std::byte> pushes, none;
  EXPECT_TRUE(server.copy_pushes(kModel, shard, 0, known, 0, SIZE_MAX, &pushes).ok());
  EXPECT_TRUE(nothing.copy_pushes(kModel, shard, 0, known, 0, SIZE_MAX, &none).ok());
  return pushes.size() - none.size();
}

// With its acknowledgements: servers have nothing to tell each other then.
TEST_P(PsReplicas, PushesAreKeptForTheOtherCopyUntilTheClockEndsOrTheWorkerLeaves) {
  constexpr uint64_t kCount = 10'000;
  Cluster cluster(2, 1, config_of(GetParam()));
  ModelSpec spec = spec_of(kCount, "add", Combine::sum);
  spec.replicas = 1;
  spec.num_servers = 2;
  std::vector<float> zeros(kCount), ones(kCount, 1.0F), out(kCount);
  cluster.create(spec, zeros);
  Client& client = *cluster.clients[0];
  const auto kept = [&] {
    size_t bytes = 0;
    for (uint32_t shard : {0, 1}) {
      for (auto& server : cluster.servers) bytes += bytes_kept(*server, shard, spec);
    }
    return bytes;
  };
  expect_done(client.push(kModel, buffers_of(ones), {}));
  EXPECT_GE(kept(), 2 * kCount * sizeof(float));
  client.clock();
  expect_done(client.pull(kModel, buffers_of(out), 0, {}));
  EXPECT_EQ(out, ones);
  const Deadline deadline = Deadline::after_s(60);
  for (auto& server : cluster.servers) {
    const auto lags = [&] { return server->model_status()[0].clocks.at(0) < 1; };
    while (lags() && !deadline.expired()) std::this_thread::yield();
  }
  EXPECT_EQ(kept(), 0U);
  expect_done(client.push(kModel, buffers_of(ones), {}));
  EXPECT_GE(kept(), 2 * kCount * sizeof(float));
  client.close();
  EXPECT_EQ(kept(), 0U);
}

// A worker that has ended its first clock, and two servers with copies, of which one holds up what
// is pushed in the next.
struct HeldUp {
  HeldUp(const std::string& transport, uint32_t holding) : cluster(2, 1, config_of(transport)) {
    spec.replicas = 1;
    spec.num_servers = 2;
    cluster.servers[holding]->set_checkpoint_every(1);
    cluster.create(spec, zeros);
    cluster.servers[holding]->stop_clocks();
    client().clock();
  }
  Client& client() { return *cluster.clients[0]; }
  Client::OperationPtr push() { return client().push(kModel, buffers_of(ones), {}).value(); }
  Client::OperationPtr push_and_give_up() {
    const Client::OperationPtr push = this->push();
    EXPECT_EQ(push->wait(Deadline::after_ns(0)).code(), StatusCode::timeout);
    push->abandon();
    return push;
  }
  size_t kept(uint32_t server) { return bytes_kept(*cluster.servers[server], server, spec); }
  void wait_until_kept(uint32_t server, size_t bytes) {
    const Deadline deadline = Deadline::after_s(60);
    while (kept(server) < bytes && !deadline.expired()) std::this_thread::yield();
    EXPECT_GE(kept(server), bytes);
  }

  static constexpr uint64_t kCount = 1000;
  Cluster cluster;
  ModelSpec spec = spec_of(kCount, "add", Combine::sum);
  std::vector<float> zeros = std::vector<float>(kCount);
  std::vector<float> ones = std::vector<float>(kCount, 1.0F);
};

// Nobody waits for the first one any more, and server 1 has not got it yet.
TEST_P(PsReplicas, APushThatIsGivenUpIsKeptUntilTheOtherCopyHasIt) {
  HeldUp job(GetParam(), 1);
  const std::vector<Client::OperationPtr> given_up{job.push_and_give_up(), job.push_and_give_up()};
  job.wait_until_kept(0, 2 * HeldUp::kCount / 2 * sizeof(float));
  job.cluster.servers.clear();  // else the client waits for an answer to its goodbye
}

// This worker is cut off from server 1, so server 0 alone has the push.
TEST_P(PsReplicas, APushThatOneServerLacksIsKeptByTheOtherOneUntilThatServerIsLostForAll) {
  HeldUp job(GetParam(), 1);
  std::vector<float> out(HeldUp::kCount);
  const auto push = job.push();
  job.wait_until_kept(0, 1);
  job.cluster.cut(1);
  expect_lost(push, {1});
  push->abandon();
  job.client().clock();
  expect_done(job.client().pull(kModel, buffers_of(out), kNoBound, {}));
  EXPECT_GT(job.kept(0), 0U);
  job.client().confirm_lost(1, 0);
  job.client().clock();
  expect_done(job.client().pull(kModel, buffers_of(out), kNoBound, {}));
  EXPECT_EQ(job.kept(0), 0U);
}

// Server 1 would be filled without this one.
TEST_P(PsReplicas, APushThatIsGivenUpGoesToAServerThatComesBackMeanwhile) {
  HeldUp job(GetParam(), 0);
  Server& back = *job.cluster.servers[1];
  job.client().confirm_lost(1, 0);
  const auto push = job.push_and_give_up();
  back.lose(1, 0);
  back.come_back(1);
  ASSERT_TRUE(back.create_model(kModel, job.spec, std::move(make_rule("add", {}).value())).ok());
  back.filled();
  job.cluster.connect(0, 1, 2);
  job.wait_until_kept(1, 1);
  job.cluster.servers.clear();  // else the client waits for an answer to its goodbye
}

// Else it could not be filled by the server that its worker holds as lost.
TEST_P(PsReplicas, AServerThatHasGivenWayIsToldNothingByItsWorkers) {
  Cluster cluster(2, 1, config_of(GetParam()));
  ModelSpec spec = spec_of(2, "add", Combine::sum);
  spec.replicas = 1;
  std::vector<float> zeros(2), out(2);
  cluster.create(spec, zeros);
  Server& server = *cluster.servers[0];
  const Lives other_lost{0, 1}, this_one_lost{1, 0};
  server.lose(1, 0);
  ASSERT_TRUE(server.give_way(other_lost, this_one_lost));
  EXPECT_FALSE(server.give_way(other_lost, this_one_lost));
  cluster.clients[0]->confirm_lost(1, 0);
  const auto pull = cluster.clients[0]->pull(kModel, buffers_of(out), kNoBound, {});
  expect_lost(pull.value(), {0, 1});
  EXPECT_EQ(server.lives(), this_one_lost);
}

}  // namespace
}  // namespace dmlcomm::ps
