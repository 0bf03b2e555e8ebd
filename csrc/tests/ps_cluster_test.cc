// Workers and servers as threads of one process, with real connections.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <future>
#include <thread>

#include "ps/client.h"
#include "ps/server.h"
#include "tests/ranks.h"

namespace dmlcomm::ps {
namespace {

constexpr uint32_t kModel = 1;
constexpr uint64_t kIncarnation = 1;

Buffers buffers_of(std::vector<float>& memory) {
  return {{{reinterpret_cast<std::byte*>(memory.data()), memory.size()}}};
}

// A hang fails the test at the deadline. An operation that is done only then has hung, too.
void expect_done(const Result<Client::OperationPtr>& operation) {
  ASSERT_TRUE(operation.ok()) << operation.status();
  const Deadline deadline = Deadline::after_s(60);
  const Status status = (*operation)->wait(deadline);
  ASSERT_TRUE(status.ok()) << status;
  ASSERT_FALSE(deadline.expired());
}

// It is stuck, for want of this server. Workers wait in slices, too.
void expect_lost(const Client::OperationPtr& operation, uint32_t server) {
  const Deadline deadline = Deadline::after_s(60);
  Status status(StatusCode::timeout, "not yet");
  while (status.code() == StatusCode::timeout && !deadline.expired()) {
    status = operation->wait(Deadline::after_s(0.1));
  }
  EXPECT_EQ(status.code(), StatusCode::peer_lost) << status;
  EXPECT_EQ(operation->lost(), std::vector<uint32_t>{server});
}

class Cluster {
 public:
  Cluster(uint32_t num_servers, uint32_t num_workers, const Config& config,
          uint64_t window_bytes = 0, bool settles = false)
      : config_(config) {
    for (uint32_t server = 0; server < num_servers; ++server) {
      ServerOptions options{server, num_servers, num_workers, config};
      options.window_bytes = window_bytes;
      options.settles = settles;
      servers.push_back(std::make_unique<Server>(options));
    }
    for (uint32_t worker = 0; worker < num_workers; ++worker) {
      clients.push_back(std::make_unique<Client>(ClientOptions{worker, num_servers, 1, config}));
      for (uint32_t server = 0; server < num_servers; ++server) connect(worker, server);
    }
  }

  void connect(uint32_t worker, uint32_t server) {
    const auto rendezvous = tests::memory_rendezvous();
    PairOptions join;
    join.other = worker;
    auto joined = std::async(std::launch::async, [&] {
      return servers[server]->join(join, rendezvous, 0, kIncarnation);
    });
    PairOptions connect;
    connect.other = server;
    const Status status = clients[worker]->connect(connect, rendezvous);
    EXPECT_TRUE(status.ok()) << status;
    EXPECT_TRUE(joined.get().ok());
  }

  // The connection of worker 0 ends, the server lives.
  void cut(uint32_t server) {
    PairOptions join;
    join.timeout = std::chrono::milliseconds(100);  // nobody comes
    EXPECT_FALSE(servers[server]->join(join, tests::memory_rendezvous()).ok());
  }

  void create(ModelSpec spec, std::vector<float>& values, uint32_t model = kModel) {
    spec.num_servers = static_cast<uint32_t>(servers.size());
    for (auto& server : servers) {
      ASSERT_TRUE(
          server->create_model(model, spec, std::move(make_rule(spec.rule, spec.options).value()))
              .ok());
    }
    for (auto& client : clients) ASSERT_TRUE(client->add_model(model, spec, 0).ok());
    expect_done(clients[0]->set(model, buffers_of(values)));
    for (auto& server : servers) ASSERT_TRUE(server->seal(model).ok());
  }

  void run(const std::function<void(uint32_t worker, Client& client)>& body) {
    std::vector<std::future<void>> running;
    for (uint32_t worker = 0; worker < clients.size(); ++worker) {
      running.push_back(std::async(std::launch::async,
                                   [&body, worker, this] { body(worker, *clients[worker]); }));
    }
    for (auto& one : running) one.get();
  }

  std::vector<std::unique_ptr<Server>> servers;
  std::vector<std::unique_ptr<Client>> clients;

 private:
  const Config config_;
};

ModelSpec spec_of(uint64_t count, const std::string& rule, Combine combine) {
  ModelSpec spec;
  spec.name = "m";
  spec.spaces = {{DType::f32, count, 0, DType::f32}};
  spec.rule = rule;
  spec.combine = combine;
  return spec;
}

Config config_of(const std::string& name) {
  Config config;
  config.shm_board_bytes = 0;
  if (name == "tcp") config.transport = TransportChoice::tcp;
  if (name == "ring") config.shm_single_copy = false;
  return config;
}

class PsCluster : public ::testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Transports, PsCluster, ::testing::Values("single_copy", "ring", "tcp"),
                         [](const auto& info) { return info.param; });

TEST_P(PsCluster, PushPullGivesEverybodyTheSameMean) {
  for (uint64_t count : {uint64_t{1}, uint64_t{3}, uint64_t{1000}, uint64_t{300'001}}) {
    Cluster cluster(2, 3, config_of(GetParam()));
    std::vector<float> zeros(count);
    cluster.create(spec_of(count, "assign", Combine::mean), zeros);
    cluster.run([&](uint32_t worker, Client& client) {
      for (uint32_t step = 0; step < 5; ++step) {
        std::vector<float> mine(count);
        for (uint64_t i = 0; i < count; ++i) {
          mine[i] = static_cast<float>(i % 100 + 3 * worker * (step + 1));
        }
        std::vector<float> out(count);
        expect_done(client.push_pull(kModel, buffers_of(mine), buffers_of(out), 0, {}));
        for (uint64_t i = 0; i < count; ++i) {
          ASSERT_EQ(out[i], static_cast<float>(i % 100 + 3 * (step + 1))) << i;
        }
      }
    });
  }
}

TEST_P(PsCluster, OperationsOverlapAndStayExact) {
  constexpr uint64_t kCount = 200'000;
  Cluster cluster(2, 2, config_of(GetParam()));
  std::vector<float> zeros(kCount);
  cluster.create(spec_of(kCount, "assign", Combine::sum), zeros);
  cluster.run([&](uint32_t worker, Client& client) {
    std::vector<std::vector<float>> mine;
    std::vector<std::vector<float>> out;
    for (uint32_t step = 0; step < 6; ++step) {
      mine.emplace_back(kCount, static_cast<float>((worker + 1) * (step + 1)));
      out.emplace_back(kCount);
    }
    std::vector<Client::OperationPtr> operations;
    for (uint32_t step = 0; step < 6; ++step) {
      operations.push_back(
          client.push_pull(kModel, buffers_of(mine[step]), buffers_of(out[step]), 0, {}).value());
    }
    for (uint32_t step = 0; step < 6; ++step) {
      ASSERT_TRUE(operations[step]->wait(Deadline::after_s(60)).ok());
      for (float value : out[step]) ASSERT_EQ(value, static_cast<float>(3 * (step + 1)));
    }
  });
}

TEST_P(PsCluster, PushClockAndPullAreThreeCallsWithTheSameResult) {
  constexpr uint64_t kCount = 70'000;
  Cluster cluster(1, 2, config_of(GetParam()));
  std::vector<float> ones(kCount, 1);
  ModelSpec spec = spec_of(kCount, "sgd", Combine::mean);
  spec.options["lr"] = 0.5;
  cluster.create(spec, ones);
  cluster.run([&](uint32_t worker, Client& client) {
    std::vector<float> gradient(kCount, static_cast<float>(worker));
    std::vector<float> weights(kCount);
    for (uint32_t step = 1; step <= 4; ++step) {
      expect_done(client.push(kModel, buffers_of(gradient), {}));
      client.clock();
      expect_done(client.pull(kModel, buffers_of(weights), 0, {}));
      for (float weight : weights) ASSERT_EQ(weight, 1 - 0.25F * static_cast<float>(step));
    }
  });
}

TEST_P(PsCluster, SixteenBitsOnTheWireAreSummedInThirtyTwo) {
  constexpr uint64_t kCount = 1001;
  Cluster cluster(2, 2, config_of(GetParam()));
  ModelSpec spec = spec_of(kCount, "add", Combine::sum);
  spec.spaces[0].wire = DType::bf16;
  std::vector<float> zeros(kCount);
  cluster.create(spec, zeros);
  cluster.run([&](uint32_t, Client& client) {
    std::vector<float> mine(kCount, 1.0F / 512);  // too small beside 2 for a bf16
    std::vector<float> out(kCount);
    for (int step = 0; step < 512; ++step) {
      expect_done(client.push_pull(kModel, buffers_of(mine), buffers_of(out), 0, {}));
    }
    for (float value : out) ASSERT_EQ(value, 2);
  });
}

TEST_P(PsCluster, AWorkerThatLeavesHoldsNobodyUp) {
  constexpr uint64_t kCount = 1000;
  Cluster cluster(2, 3, config_of(GetParam()));
  std::vector<float> zeros(kCount);
  cluster.create(spec_of(kCount, "add", Combine::sum), zeros);
  cluster.run([&](uint32_t worker, Client& client) {
    std::vector<float> one(kCount, 1);
    std::vector<float> out(kCount);
    for (uint32_t step = 0; step < 10; ++step) {
      if (worker == 2 && step == 4) return client.close();
      expect_done(client.push_pull(kModel, buffers_of(one), buffers_of(out), 0, {}));
    }
    for (float value : out) ASSERT_EQ(value, 3 * 4 + 2 * 6);
  });
}

// It creates a model while the servers give it up, which counts it once more.
TEST_P(PsCluster, AWorkerThatIsSettledCountsNoMoreAndIsRefused) {
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
TEST_P(PsCluster, AWorkerThatAnotherServerHasSettledEnds) {
  Cluster cluster(1, 2, config_of(GetParam()), 0, true);
  std::vector<float> zeros(3);
  cluster.create(spec_of(3, "add", Combine::sum), zeros);
  std::vector<float> out(3);
  expect_done(cluster.clients[1]->pull(kModel, buffers_of(out), 0, {}));
  Server& server = *cluster.servers[0];
  server.take_settled({{0, kIncarnation + 1}, {1, kIncarnation}});
  const auto gone = server.unsettled();
  EXPECT_FALSE(gone.contains(0));
  ASSERT_TRUE(gone.contains(1));
  EXPECT_FALSE(gone.at(1).has_left);
  EXPECT_TRUE(server.end_worker(0, kIncarnation, ""));  // as another server has seen it leave
  EXPECT_TRUE(server.unsettled().at(0).has_left);
}

TEST_P(PsCluster, WithAReplicaNoAcknowledgedPushIsLost) {
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
TEST_P(PsCluster, APushIsNotDoneBeforeItIsKnownWhetherALostServerIsLostForAll) {
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
    expect_lost(operation, 0);
  }
  EXPECT_TRUE(client.lost_for_all().empty());
  client.confirm_lost(0, 0);
  EXPECT_EQ(client.lost_for_all(), std::vector<uint32_t>{0});
  client.retry(operation);
  EXPECT_TRUE(operation->wait(Deadline::after_s(60)).ok());
  for (float value : out) ASSERT_EQ(value, 1);
}

// What a worker says of lost servers, in a message that it could not send by a client.
TEST_P(PsCluster, LossesAreBelievedOfServersThatThereAreAndThatHaveReplicas) {
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

TEST_P(PsCluster, WithoutAReplicaItSaysWhichServerIsGoneAndGoesOnWhenThatIsBack) {
  constexpr uint64_t kCount = 100'000;
  Cluster cluster(2, 1, config_of(GetParam()));
  std::vector<float> zeros(kCount);
  cluster.create(spec_of(kCount, "add", Combine::sum), zeros);
  Client& client = *cluster.clients[0];
  std::vector<float> one(kCount, 1);
  std::vector<float> out(kCount);
  expect_done(client.push_pull(kModel, buffers_of(one), buffers_of(out), 0, {}));
  cluster.cut(1);
  const auto operation = client.push_pull(kModel, buffers_of(one), buffers_of(out), 0, {}).value();
  expect_lost(operation, 1);
  cluster.connect(0, 1);
  EXPECT_TRUE(operation->wait(Deadline::after_s(60)).ok());
  for (float value : out) ASSERT_EQ(value, 2);
  expect_done(client.push_pull(kModel, buffers_of(one), buffers_of(out), 0, {}));
  for (float value : out) ASSERT_EQ(value, 3);
}

// Who waits for it there may be whom this worker waits for at the other server.
TEST_P(PsCluster, ALostServerIsToldOfWhileAnotherOneHasNotAnswered) {
  constexpr uint64_t kCount = 1000;
  for (const uint32_t server : {0, 1}) {
    Cluster cluster(2, 2, config_of(GetParam()));
    std::vector<float> zeros(kCount);
    cluster.create(spec_of(kCount, "add", Combine::sum), zeros);
    std::vector<float> one(kCount, 1), out(kCount), seen(kCount);
    cluster.cut(server);
    const auto operation =
        cluster.clients[0]->push_pull(kModel, buffers_of(one), buffers_of(out), 0, {}).value();
    expect_lost(operation, server);
    cluster.connect(0, server);
    expect_done(cluster.clients[1]->push_pull(kModel, buffers_of(one), buffers_of(seen), 0, {}));
    expect_done(operation);
    for (float value : out) ASSERT_EQ(value, 2);
  }
}

// Pushes that came behind the end of their clock would count in a later one, and be the last words.
TEST_P(PsCluster, WhatIsRepeatedKeepsTheOrderOfItsStartWhoeverWaits) {
  constexpr uint64_t kCount = 100'000;
  Cluster cluster(2, 1, config_of(GetParam()));
  std::vector<float> zeros(kCount);
  cluster.create(spec_of(kCount, "assign", Combine::sum), zeros);
  Client& client = *cluster.clients[0];
  std::vector<float> early(kCount, 1), late(kCount, 2), out(kCount), seen(kCount);
  cluster.cut(0);
  const auto first = client.push(kModel, buffers_of(early), {}).value();
  client.clock();
  const auto second = client.push_pull(kModel, buffers_of(late), buffers_of(out), 0, {}).value();
  const auto third = client.pull(kModel, buffers_of(seen), 0, {}).value();
  client.clock();
  for (const auto& operation : {third, second}) {
    EXPECT_EQ(operation->wait(Deadline::after_s(60)).code(), StatusCode::peer_lost);
  }
  cluster.connect(0, 0);
  client.clock();
  for (const auto& operation : {third, second, first}) {
    EXPECT_TRUE(operation->wait(Deadline::after_s(60)).ok());
  }
  EXPECT_EQ(out, late);
  EXPECT_EQ(seen, late);
  expect_done(client.pull(kModel, buffers_of(out), 0, {}));
  EXPECT_EQ(out, late);
}

// Servers give up a worker that sleeps; what it has not done counts where it wakes.
TEST_P(PsCluster, AWorkerThatWasDoneWithoutGoesOnFromTheClocksOfTheOthers) {
  constexpr uint64_t kCount = 1000;
  Cluster cluster(2, 2, config_of(GetParam()));
  std::vector<float> zeros(kCount);
  cluster.create(spec_of(kCount, "add", Combine::sum), zeros);
  Client& sleeper = *cluster.clients[0];
  Client& other = *cluster.clients[1];
  std::vector<float> one(kCount, 1), ten(kCount, 10), out(kCount), seen(kCount), last(kCount);
  for (uint32_t server : {0, 1}) {
    cluster.cut(server);
    cluster.servers[server]->give_up(0);
  }
  const auto pushed = sleeper.push(kModel, buffers_of(ten), {}).value();
  sleeper.clock();
  const auto pulled = sleeper.push_pull(kModel, buffers_of(ten), buffers_of(out), 0, {}).value();
  for (int i = 0; i < 5; ++i) {
    expect_done(other.push_pull(kModel, buffers_of(one), buffers_of(seen), 0, {}));
  }
  EXPECT_EQ(pushed->wait(Deadline::after_s(60)).code(), StatusCode::peer_lost);
  for (uint32_t server : {0, 1}) {
    const Held held = cluster.servers[server]->hold(kModel, 0);
    EXPECT_TRUE(held.is_new);
    sleeper.skip_to(kModel, server, held.clock);
    cluster.connect(0, server);
  }
  EXPECT_EQ(sleeper.clock_of(kModel).value(), 7U);
  for (float expected : {16.0F, 27.0F}) {  // without a push of another clock
    expect_done(other.push_pull(kModel, buffers_of(one), buffers_of(seen), 0, {}));
    for (float value : seen) ASSERT_EQ(value, expected);
  }
  expect_done(pushed);
  expect_done(pulled);
  EXPECT_EQ(out, seen);
  sleeper.clock();
  expect_done(other.push_pull(kModel, buffers_of(one), buffers_of(seen), 0, {}));
  expect_done(sleeper.pull(kModel, buffers_of(last), 0, {}));
  EXPECT_EQ(last, seen);
}

TEST_P(PsCluster, RowsOfATable) {
  Cluster cluster(2, 2, config_of(GetParam()));
  ModelSpec spec = spec_of(5, "add", Combine::sum);
  spec.spaces.push_back({DType::f32, 300, 3, DType::f32});
  spec.num_servers = 2;
  for (auto& server : cluster.servers) {
    ASSERT_TRUE(server->create_model(kModel, spec, std::move(make_rule("add", {}).value())).ok());
  }
  for (auto& client : cluster.clients) ASSERT_TRUE(client->add_model(kModel, spec, 0).ok());
  std::vector<float> dense(5);
  std::vector<float> table(300);
  for (size_t i = 0; i < 300; ++i) table[i] = static_cast<float>(i);
  expect_done(cluster.clients[0]->set(kModel, {buffers_of(dense)[0], buffers_of(table)[0]}));
  for (auto& server : cluster.servers) ASSERT_TRUE(server->seal(kModel).ok());
  cluster.run([&](uint32_t worker, Client& client) {
    std::vector<int64_t> numbers{7, static_cast<int64_t>(10 + worker), 7};
    std::vector<float> values(9, 1);
    auto* memory = reinterpret_cast<std::byte*>(values.data());
    expect_done(client.push_rows(kModel, {1, numbers.data(), 3, memory}, {}));
    client.clock();
    std::vector<int64_t> wanted{99, 7, 10, 11, 0};
    std::vector<float> got(15);
    expect_done(client.pull_rows(
        kModel, {1, wanted.data(), 5, reinterpret_cast<std::byte*>(got.data())}, 0, {}));
    const std::vector<float> expected{297, 298, 299, 25, 26, 27, 31, 32, 33, 34, 35, 36, 0, 1, 2};
    EXPECT_EQ(got, expected);
  });
}

// What a server keeps of the pushes of worker 0 to its own shard, for the other copy.
size_t bytes_kept(Server& server, uint32_t shard, const ModelSpec& spec) {
  ServerOptions options{shard, spec.num_servers, 1, Config()};
  Server nothing(options);
  EXPECT_TRUE(nothing.create_model(kModel, spec, std::move(make_rule("add", {}).value())).ok());
  const auto known = nothing.known_pushes(kModel, shard, 0, 0);
  std::vector<std::byte> pushes, none;
  EXPECT_TRUE(server.copy_pushes(kModel, shard, 0, known, 0, SIZE_MAX, &pushes).ok());
  EXPECT_TRUE(nothing.copy_pushes(kModel, shard, 0, known, 0, SIZE_MAX, &none).ok());
  return pushes.size() - none.size();
}

// With its acknowledgements: servers have nothing to tell each other then.
TEST_P(PsCluster, PushesAreKeptForTheOtherCopyUntilTheClockEndsOrTheWorkerLeaves) {
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
  for (auto& server : cluster.servers) {
    while (server->model_status()[0].clocks.at(0) < 1) std::this_thread::yield();
  }
  EXPECT_EQ(kept(), 0U);
  expect_done(client.push(kModel, buffers_of(ones), {}));
  EXPECT_GE(kept(), 2 * kCount * sizeof(float));
  client.close();
  EXPECT_EQ(kept(), 0U);
}

// Server 1 holds pushes up: nobody waits for the first one any more, and it has not got it yet.
TEST_P(PsCluster, APushThatIsGivenUpIsKeptUntilTheOtherCopyHasIt) {
  constexpr uint64_t kCount = 1000;
  Cluster cluster(2, 1, config_of(GetParam()));
  ModelSpec spec = spec_of(kCount, "add", Combine::sum);
  spec.replicas = 1;
  spec.num_servers = 2;
  std::vector<float> zeros(kCount), ones(kCount, 1.0F);
  cluster.servers[1]->set_checkpoint_every(1);
  cluster.create(spec, zeros);
  Client& client = *cluster.clients[0];
  cluster.servers[1]->stop_clocks();
  client.clock();
  std::vector<Client::OperationPtr> given_up;
  for ([[maybe_unused]] const int which : {0, 1}) {
    given_up.push_back(client.push(kModel, buffers_of(ones), {}).value());
    EXPECT_EQ(given_up.back()->wait(Deadline::after_ns(0)).code(), StatusCode::timeout);
    given_up.back()->abandon();
  }
  const Deadline deadline = Deadline::after_s(60);
  const size_t both = 2 * kCount / 2 * sizeof(float);
  while (bytes_kept(*cluster.servers[0], 0, spec) < both && !deadline.expired()) {
    std::this_thread::yield();
  }
  EXPECT_GE(bytes_kept(*cluster.servers[0], 0, spec), both);
  cluster.servers.clear();  // else the client waits for an answer to its goodbye
}

TEST_P(PsCluster, AModelThatIsNotThereEndsTheSessionWithAReason) {
  Cluster cluster(1, 1, config_of(GetParam()));
  Client& client = *cluster.clients[0];
  ASSERT_TRUE(client.add_model(kModel, spec_of(10, "add", Combine::sum), 0).ok());
  std::vector<float> out(10);
  const auto operation = client.pull(kModel, buffers_of(out), 0, {}).value();
  const Status status = operation->wait(Deadline::after_s(60));
  EXPECT_EQ(status.code(), StatusCode::peer_lost);
  EXPECT_NE(status.message().find("restarted without a checkpoint"), std::string::npos) << status;
}

// Whoever connects anew does not wait for ever for a connection that does not let go.
TEST_P(PsCluster, WhatAConnectionStillHoldsIsNotRepeated) {
  constexpr uint64_t kCount = 1000;
  Cluster cluster(1, 2, config_of(GetParam()));
  std::vector<float> zeros(kCount), ones(kCount, 1), got(kCount);
  cluster.create(spec_of(kCount, "add", Combine::sum), zeros);
  Client& client = *cluster.clients[0];
  const auto waits = client.push_pull(kModel, buffers_of(ones), buffers_of(got), 0, {}).value();
  const Result<bool> repeats = waits->repeat(0, Deadline::after_ns(1));
  ASSERT_FALSE(repeats.ok());
  EXPECT_EQ(repeats.status().code(), StatusCode::timeout);
  expect_done(cluster.clients[1]->push_pull(kModel, buffers_of(ones), buffers_of(zeros), 0, {}));
  expect_done(waits);
  EXPECT_EQ(got, std::vector<float>(kCount, 2));
}

constexpr uint32_t kOther = 2;
constexpr CallOptions kUrgent{.ticket = 0};

// Worker 1 has ended no clock, so the last push of worker 0 cannot be taken.
TEST_P(PsCluster, AnUrgentPullPassesAPushThatWaitsForASlowWorker) {
  constexpr uint64_t kCount = 1000;
  Cluster cluster(1, 2, config_of(GetParam()), 1);
  std::vector<float> zeros(kCount), sevens(kCount, 7), ones(kCount, 1), got(kCount);
  cluster.create(spec_of(kCount, "add", Combine::sum), zeros);
  cluster.create(spec_of(kCount, "add", Combine::sum), sevens, kOther);
  Client& ahead = *cluster.clients[0];
  for (uint64_t clock = 0; clock < kMinWindows; ++clock) {
    expect_done(ahead.push(kModel, buffers_of(ones), {}));
    ahead.clock();
  }
  const auto push = ahead.push(kModel, buffers_of(ones), {});
  expect_done(ahead.pull(kOther, buffers_of(got), kNoBound, kUrgent));
  EXPECT_EQ(got, sevens);
  EXPECT_FALSE((*push)->done());
  cluster.clients[1]->clock();
  expect_done(push);
}

// Each worker ends the clock that the other one's pull waits for only after its own push is done.
// That is large, so the wait begins before its end.
TEST_P(PsCluster, APushIsDoneWhileAnExactPullOfAnotherModelWaits) {
  constexpr uint64_t kCount = 1'000'000;
  std::vector<float> ones(kCount, 1), zeros(kCount);
  std::vector<std::vector<float>> got(2, zeros), got_late(2, zeros);
  Cluster cluster(1, 2, config_of(GetParam()));
  cluster.create(spec_of(kCount, "add", Combine::sum), zeros);
  cluster.create(spec_of(kCount, "add", Combine::sum), zeros, kOther);
  cluster.run([&](uint32_t worker, Client& client) {
    const uint32_t pushed = worker == 0 ? kModel : kOther;
    const uint32_t pulled = worker == 0 ? kOther : kModel;
    const auto push = client.push(pushed, buffers_of(ones), {});
    const auto pull = client.push_pull(pulled, buffers_of(ones), buffers_of(got[worker]), 0, {});
    expect_done(push);
    expect_done(client.push_pull(pushed, buffers_of(ones), buffers_of(got_late[worker]), 0, {}));
    expect_done(pull);
    EXPECT_EQ(got[worker], std::vector<float>(kCount, 3));
    EXPECT_EQ(got_late[worker], std::vector<float>(kCount, 3));
  });
}

// A worker that sends what it is told to.
class RawWorker {
 public:
  RawWorker(Server& server, uint32_t number, const Config& config) {
    const auto rendezvous = tests::memory_rendezvous();
    PairOptions options;
    options.other = number;
    auto joined = std::async(std::launch::async, [&] { return server.join(options, rendezvous); });
    PairOptions own;
    connection_ = meet(kWorkerRank, number, own, config, rendezvous).value();
    EXPECT_TRUE(joined.get().ok());
  }
  ~RawWorker() {
    give(Command());  // it leaves
    take_answer();
    connection_->close();
  }

  void give(const Command& command) {
    const CommandBytes bytes = encode(command);
    send(kCommand, const_cast<std::byte*>(bytes.data()), bytes.size());
  }
  void send(uint32_t tag, void* data, size_t bytes) {
    expect_ok(connection_->send({data, bytes}, kServerRank, tag, {})->wait(kLimit));
  }
  void receive(uint32_t tag, void* data, size_t bytes) {
    expect_ok(connection_->recv({data, bytes}, kServerRank, tag, {})->wait(kLimit));
  }
  void take_answer() {
    AnswerBytes bytes;
    receive(kAnswer, bytes.data(), bytes.size());
  }

 private:
  static constexpr std::chrono::milliseconds kLimit{60'000};
  static void expect_ok(const Status& status) { ASSERT_TRUE(status.ok()) << status; }

  std::shared_ptr<engine::Communicator> connection_;
};

// The worker holds the last piece back until it has the answer to its pull.
TEST_P(PsCluster, AnUrgentPullPassesAPushThatComesIn) {
  constexpr uint64_t kCount = 300'000, kFew = 10;
  const Config config = config_of(GetParam());
  Cluster cluster(1, 1, config);
  std::vector<float> zeros(kCount), sevens(kFew, 7), ones(kCount, 1), got(kFew);
  const ModelSpec spec = spec_of(kCount, "add", Combine::sum);
  cluster.create(spec, zeros);
  cluster.create(spec_of(kFew, "add", Combine::sum), sevens, kOther);
  RawWorker worker(*cluster.servers[0], 1, config);
  Command command;
  command.kind = CommandKind::attach;
  for (uint32_t model : {kModel, kOther}) {
    command.model = model;
    worker.give(command);
    worker.take_answer();
  }
  command.kind = CommandKind::push;
  command.model = kModel;
  command.sequence = 1;
  worker.give(command);
  const std::vector<Piece> pieces = pieces_of(spec, 0);
  ASSERT_GT(pieces.size(), 2U);
  const auto send_piece = [&](const Piece& piece) {
    worker.send(kUp, ones.data() + piece.first, piece.wire_bytes(spec));
  };
  std::for_each(pieces.begin(), pieces.end() - 1, send_piece);
  command.kind = CommandKind::pull;
  command.model = kOther;
  command.ticket = 0;
  worker.give(command);
  worker.receive(kDown, got.data(), kFew * sizeof(float));
  EXPECT_EQ(got, sevens);
  send_piece(pieces.back());
  worker.take_answer();
}

}  // namespace
}  // namespace dmlcomm::ps
