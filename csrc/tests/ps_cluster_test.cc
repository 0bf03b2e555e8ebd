// Workers and servers with real connections; see ps_replicas_test for what copies make of it.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <deque>
#include <future>
#include <numeric>
#include <random>
#include <thread>

#include "tests/ps_cluster.h"

namespace dmlcomm::ps {
namespace {

using namespace tests;

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
  expect_lost(operation, {1});
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
    expect_lost(operation, {server});
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

// As above; and an exact pull waits for a clock that worker 1 has not ended either.
TEST_P(PsCluster, UrgentPushesAndPullsPassWhatTheirWorkerHasGivenBefore) {
  constexpr uint64_t kCount = 300'000, kFew = 10;
  constexpr uint32_t kBehind = 3;
  Cluster cluster(1, 2, config_of(GetParam()), 1);
  std::vector<float> zeros(kCount), ones(kCount, 1), few(kFew, 7), got(kFew), late(kCount),
      all(kCount);
  cluster.create(spec_of(kCount, "add", Combine::sum), zeros);
  cluster.create(spec_of(kCount, "add", Combine::sum), zeros, kBehind);
  ModelSpec at_once = spec_of(kFew, "add", Combine::sum);
  at_once.apply = Apply::at_push;
  cluster.create(at_once, few, kOther);
  Client& ahead = *cluster.clients[0];
  for (uint64_t clock = 0; clock < kMinWindows; ++clock) {
    expect_done(ahead.push(kModel, buffers_of(ones), {}));
    ahead.clock();
  }
  const auto pull = ahead.pull(kModel, buffers_of(all), 0, {});
  const auto push = ahead.push(kModel, buffers_of(ones), {});
  const auto behind = ahead.push(kBehind, buffers_of(ones), {});
  const auto of_the_same = ahead.pull(kModel, buffers_of(late), kNoBound, kUrgent);
  for (float sum : {14, 21}) {
    expect_done(ahead.push(kOther, buffers_of(few), kUrgent));
    ahead.clock();
    expect_done(ahead.pull(kOther, buffers_of(got), kNoBound, kUrgent));
    EXPECT_EQ(got, std::vector<float>(kFew, sum));
  }
  EXPECT_EQ(cluster.servers[0]->find_model(kOther)->clocks().get(0), kMinWindows + 2);
  for (const auto& waits : {pull, push, behind, of_the_same}) EXPECT_FALSE((*waits)->done());
  for (uint64_t clock = 0; clock < kMinWindows + 2; ++clock) cluster.clients[1]->clock();
  for (const auto& waits : {pull, push, behind, of_the_same}) expect_done(waits);
  EXPECT_EQ(all, std::vector<float>(kCount, kMinWindows));
  EXPECT_GE(late.front(), kMinWindows);
}

TEST_P(PsCluster, AServerEndsWhileCommandsOfSeveralTicketsWait) {
  constexpr uint64_t kCount = 300'000;
  Cluster cluster(1, 2, config_of(GetParam()), 1);
  std::vector<float> zeros(kCount), ones(kCount, 1);
  constexpr std::array<uint8_t, 4> kTickets{0, 1, 64, kDefaultTicket};
  for (uint8_t ticket : kTickets) {
    cluster.create(spec_of(kCount, "add", Combine::sum), zeros, ticket);
  }
  Client& ahead = *cluster.clients[0];
  std::vector<Client::OperationPtr> operations;
  for (uint64_t clock = 0; clock <= kMinWindows; ++clock) {
    for (uint8_t ticket : kTickets) {
      operations.push_back(ahead.push(ticket, buffers_of(ones), {.ticket = ticket}).value());
    }
    ahead.clock();
  }
  for (size_t i = 0; i < kMinWindows * kTickets.size(); ++i) expect_done(operations[i]);
  cluster.servers[0].reset();
  for (size_t i = kMinWindows * kTickets.size(); i < operations.size(); ++i) {
    expect_lost(operations[i], {0});
  }
}

// Each worker draws its own tickets, and the order of its models. The connections of one end; a
// pull that it repeats may show what it has pushed later, so it is in one round then, and in two
// else.
TEST_P(PsCluster, RandomTicketsChangeNoSum) {
  constexpr uint32_t kModels = 8, kWorkers = 3, kRounds = 24;
  Cluster cluster(2, kWorkers, config_of(GetParam()));
  std::vector<uint64_t> counts;
  for (uint32_t model = 0; model < kModels; ++model) {
    counts.push_back(1 + 97 * (uint64_t{1} << 2 * (model % 7)));
    std::vector<float> zeros(counts.back());
    ModelSpec spec = spec_of(counts.back(), "add", Combine::sum);
    spec.replicas = model % 4 == 3;
    cluster.create(spec, zeros, model);
  }
  cluster.run([&](uint32_t worker, Client& client) {
    std::mt19937 draw(worker);
    struct Pulled {
      uint64_t model;
      float sum;
      std::vector<float> values;
    };
    std::vector<std::vector<float>> pushed;
    for (uint64_t count : counts) pushed.emplace_back(count, static_cast<float>(1 + worker));
    for (uint32_t round = 0; round < kRounds;) {
      std::deque<Pulled> pulled;
      std::vector<Result<Client::OperationPtr>> operations;
      const bool is_cut = worker == 0 && round % 5 == 4;
      const uint32_t end = std::min(kRounds, round + (is_cut ? 1 : 2));
      for (; round < end; ++round) {
        std::vector<uint32_t> models(kModels);
        std::iota(models.begin(), models.end(), 0);
        std::shuffle(models.begin(), models.end(), draw);
        const auto ticket = [&] { return CallOptions{.ticket = static_cast<uint8_t>(draw())}; };
        const auto memory_of = [&](uint32_t model) {
          // 1 + 2 + 3 of each round so far.
          const auto sum = static_cast<float>(6 * (round + 1));
          pulled.push_back({model, sum, std::vector<float>(counts[model])});
          return buffers_of(pulled.back().values);
        };
        for (uint32_t model : models) {
          operations.push_back(client.push(model, buffers_of(pushed[model]), ticket()));
        }
        client.clock();
        for (uint32_t model : models) {
          operations.push_back(client.pull(model, memory_of(model), 0, ticket()));
        }
      }
      for (uint32_t server = 0; is_cut && server < cluster.servers.size(); ++server) {
        cluster.cut(server);
        cluster.connect(0, server);
      }
      for (const auto& operation : operations) expect_done(operation);
      for (const Pulled& one : pulled) {
        ASSERT_EQ(one.values, std::vector<float>(counts[one.model], one.sum)) << one.model;
      }
    }
  });
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
