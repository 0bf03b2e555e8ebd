// Workers, proxies and a server as threads of one process, with real connections.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <future>
#include <map>
#include <random>
#include <thread>

#include "base/str_cat.h"
#include "proxy/uplink.h"
#include "tests/ps_cluster.h"

namespace dmlcomm::proxy {
namespace {

using ps::Buffers;
using ps::Client;
using ps::Combine;
using ps::ModelSpec;
using ps::Server;
using ps::tests::buffers_of;
using ps::tests::config_of;
using ps::tests::expect_done;
using ps::tests::kModel;
using ps::tests::spec_of;

constexpr int kRoot = -1;

std::shared_ptr<const ps::Rule> rule_of(const std::string& name) {
  return std::move(ps::make_rule(name, {}).value());
}

// One server, and proxies below it: parents[i] is the parent of proxy i, or kRoot. Worker w is at
// proxy w / workers_each.
class Tree {
 public:
  Tree(std::vector<int> parents, uint32_t workers_each, const Config& config)
      : parents_(std::move(parents)), workers_each_(workers_each), config_(config) {
    server = std::make_unique<Server>(ps::ServerOptions{0, 1, num_workers(), config});
    for (uint32_t i = 0; i < parents_.size(); ++i) {
      uplinks.push_back(std::make_shared<Uplink>(config));
      proxies.push_back(
          std::make_unique<Server>(ps::ServerOptions{0, 1, num_workers(), config, uplinks.back()}));
    }
    for (uint32_t worker = 0; worker < num_workers(); ++worker) clients.push_back(attach(worker));
  }

  ~Tree() {
    clients.clear();
    for (auto& uplink : uplinks) uplink->close();
  }

  uint32_t num_workers() const { return static_cast<uint32_t>(parents_.size()) * workers_each_; }

  int proxy_of(uint32_t worker) const { return static_cast<int>(worker / workers_each_); }
  // Whether the worker is at this proxy, or at one below it.
  bool is_below(uint32_t worker, int i) const {
    int at = proxy_of(worker);
    while (at != kRoot && at != i) at = parents_[at];
    return at == i;
  }

  std::unique_ptr<Client> attach(uint32_t worker, uint64_t first_sequence = 1) {
    auto client = std::make_unique<Client>(ps::ClientOptions{worker, 1, first_sequence, config_});
    meet(*proxies[worker / workers_each_], worker,
         [&](const auto& rendezvous) { return client->connect(ps::PairOptions{}, rendezvous); });
    return client;
  }

  void connect_up(uint32_t i) {
    Server& parent = parents_[i] == kRoot ? *server : *proxies[parents_[i]];
    meet(parent, ps::kFirstProxy + i, [&](const auto& rendezvous) {
      return uplinks[i]->connect(ps::kFirstProxy + i, ps::PairOptions{}, rendezvous);
    });
    std::vector<uint32_t> expected;
    for (uint32_t worker = 0; worker < num_workers(); ++worker) {
      if (is_below(worker, static_cast<int>(i))) expected.push_back(worker);
    }
    proxies[i]->start_up(expected);
  }

  void create(const ModelSpec& spec, std::vector<float> values) {
    ASSERT_TRUE(server->create_model(kModel, spec, rule_of(spec.rule)).ok());
    for (auto& proxy : proxies) {
      ASSERT_TRUE(proxy->create_model(kModel, spec, rule_of("assign")).ok());
      const bool is_sum = spec.rule == "add" && spec.combine == Combine::sum;
      if (is_sum) proxy->show_own_from(kModel, 0);
    }
    for (auto& client : clients) ASSERT_TRUE(client->add_model(kModel, spec, 0).ok());
    const auto setting = clients[0]->set(kModel, buffers_of(values));
    for (uint32_t i = 0; i < proxies.size(); ++i) connect_up(i);
    expect_done(setting);
    ASSERT_TRUE(server->seal(kModel).ok());
    ASSERT_TRUE(proxies[0]->seal(kModel).ok());
  }

  void run(const std::function<void(uint32_t worker, Client& client)>& body) {
    std::vector<std::future<void>> running;
    for (uint32_t worker = 0; worker < clients.size(); ++worker) {
      if (clients[worker] == nullptr) continue;
      running.push_back(std::async(std::launch::async,
                                   [&body, worker, this] { body(worker, *clients[worker]); }));
    }
    for (auto& one : running) one.get();
  }

  std::unique_ptr<Server> server;
  std::vector<std::shared_ptr<Uplink>> uplinks;
  std::vector<std::unique_ptr<Server>> proxies;
  std::vector<std::unique_ptr<Client>> clients;

 private:
  template <typename Connect>
  void meet(Server& parent, uint32_t number, Connect connect) {
    const auto rendezvous = tests::memory_rendezvous();
    ps::PairOptions join;
    join.other = number;
    auto joined = std::async(std::launch::async, [&] { return parent.join(join, rendezvous); });
    const Status status = connect(rendezvous);
    EXPECT_TRUE(status.ok()) << status;
    EXPECT_TRUE(joined.get().ok());
  }

  const std::vector<int> parents_;
  const uint32_t workers_each_;
  const Config config_;
};

std::vector<float> pull(Client& client, uint64_t count, int64_t staleness) {
  std::vector<float> out(count);
  expect_done(client.pull(kModel, buffers_of(out), staleness, {}));
  return out;
}

struct Shape {
  std::string name;
  std::vector<int> parents;
};
const Shape kOne{"one", {kRoot}};
const Shape kFlat{"flat", {kRoot, kRoot, kRoot}};
const Shape kChain{"chain", {kRoot, 0, 1, 2}};
const Shape kBinary{"binary", {kRoot, 0, 0, 1, 1}};

class ProxyTree : public ::testing::TestWithParam<std::tuple<Shape, std::string>> {
 protected:
  const std::vector<int>& parents() { return std::get<0>(GetParam()).parents; }
  Config config() { return config_of(std::get<1>(GetParam())); }
};
INSTANTIATE_TEST_SUITE_P(Shapes, ProxyTree,
                         ::testing::Combine(::testing::Values(kOne, kFlat, kChain, kBinary),
                                            ::testing::Values("shm", "tcp")),
                         [](const auto& info) {
                           return std::get<0>(info.param).name + "_" + std::get<1>(info.param);
                         });

TEST_P(ProxyTree, PushPullGivesEverybodyTheSumOfAll) {
  for (uint64_t count : {uint64_t{1}, uint64_t{1001}, uint64_t{300'001}}) {
    Tree tree(parents(), 2, config());
    tree.create(spec_of(count, "add", Combine::sum), std::vector<float>(count, 5));
    const auto num = static_cast<float>(tree.num_workers());
    tree.run([&](uint32_t worker, Client& client) {
      ASSERT_EQ(pull(client, count, ps::kNoBound), std::vector<float>(count, 5));
      float expected = 5;
      ps::CallOptions options;
      for (uint32_t step = 1; step <= 4; ++step) {
        std::vector<float> mine(count, static_cast<float>(worker * step));
        std::vector<float> out(count);
        options.inline_wait = step % 2 == 0;
        expect_done(client.push_pull(kModel, buffers_of(mine), buffers_of(out), 0, options));
        expected += num * (num - 1) / 2 * static_cast<float>(step);
        ASSERT_EQ(out, std::vector<float>(count, expected)) << worker << " " << step;
      }
    });
  }
}

TEST_P(ProxyTree, MeanIsOverThePushesOfAllWorkers) {
  constexpr uint64_t kCount = 70'000;
  Tree tree(parents(), 2, config());
  tree.create(spec_of(kCount, "assign", Combine::mean), std::vector<float>(kCount));
  const uint32_t num = tree.num_workers();
  tree.run([&](uint32_t worker, Client& client) {
    for (uint32_t step = 0; step < 3; ++step) {
      // Worker 0 pushes twice: these are num + 1 pushes whose sum is num (num + 1).
      std::vector<float> mine(kCount, static_cast<float>(worker == 0 ? num : 2 * worker));
      expect_done(client.push(kModel, buffers_of(mine), {}));
      if (worker == 0) expect_done(client.push(kModel, buffers_of(mine), {}));
      client.clock();
      const float sum = static_cast<float>(num * 2) + static_cast<float>(num * (num - 1));
      for (float value : pull(client, kCount, 0)) {
        ASSERT_FLOAT_EQ(value, sum / static_cast<float>(num + 1));
      }
    }
  });
}

// Of a clock that nobody pushes in.
TEST_P(ProxyTree, ClocksWithoutPushesLeaveTheWeights) {
  Tree tree(parents(), 1, config());
  tree.create(spec_of(100, "add", Combine::sum), std::vector<float>(100, 7));
  tree.run([&](uint32_t worker, Client& client) {
    for (uint32_t step = 0; step < 3; ++step) client.clock();
    ASSERT_EQ(pull(client, 100, 0), std::vector<float>(100, 7)) << worker;
  });
}

// Values whose sums depend on the order: the result is that of the tree's order.
TEST_P(ProxyTree, SumsHaveTheSameBitsWhateverTheOrderOfArrival) {
  std::vector<std::vector<float>> results;
  for (bool reversed : {false, true}) {
    Tree tree(parents(), 2, config());
    tree.create(spec_of(1000, "assign", Combine::sum), std::vector<float>(1000));
    const uint32_t num = tree.num_workers();
    std::vector<std::vector<float>> mine(num), out(num, std::vector<float>(1000));
    std::vector<Client::OperationPtr> operations;
    for (uint32_t i = 0; i < num; ++i) {
      const uint32_t worker = reversed ? num - 1 - i : i;
      for (uint32_t j = 0; j < 1000; ++j) {
        mine[worker].push_back(std::sin(static_cast<float>(1 + j + 1000 * worker)) *
                               std::pow(10.0F, static_cast<float>(worker % 5)));
      }
      // The push is at the proxy before the next worker begins.
      expect_done(tree.clients[worker]->push(kModel, buffers_of(mine[worker]), {}));
    }
    tree.run([&](uint32_t worker, Client& client) {
      client.clock();
      out[worker] = pull(client, 1000, 0);
    });
    for (uint32_t worker = 1; worker < num; ++worker) ASSERT_EQ(out[worker], out[0]);
    results.push_back(out[0]);
  }
  EXPECT_EQ(results[0], results[1]);
}

// Proxies at random places, the deepest one `depth` edges below the server.
std::vector<int> random_parents(int depth, std::mt19937& random) {
  constexpr int kMostProxies = 5;
  std::vector<int> parents, depths;
  const auto add_below = [&](int parent) {
    parents.push_back(parent);
    depths.push_back(parent == kRoot ? 1 : depths[parent] + 1);
  };
  for (int i = 0; i < depth; ++i) add_below(i - 1);
  while (parents.size() < kMostProxies) {
    const int parent = static_cast<int>(random() % (parents.size() + 1)) - 1;
    if (parent == kRoot || depths[parent] < depth) add_below(parent);
  }
  return parents;
}

// What each worker of a job pushes: by worker, how many pushes come before each clock.
using Plan = std::vector<std::vector<float>>;
Plan random_plan(uint32_t num_workers, uint64_t num_clocks, std::mt19937& random) {
  Plan plan(num_workers, {0});
  for (auto& before : plan) {
    while (before.size() <= num_clocks) {
      before.push_back(before.back() + static_cast<float>(random() % 3));
    }
  }
  return plan;
}

// Whether a worker sees these pushes at `clock` if its proxy's copy is of `version`: element w is
// the number of pushes of worker w. Of itself it sees all, of those that come by its proxy what is
// there already, whole clocks where they are those of another proxy, and of others what the version
// has.
bool may_be_seen(const Plan& plan, const Tree& tree, uint32_t worker, uint64_t clock,
                 uint64_t version, const float* seen) {
  const int proxy = tree.proxy_of(worker);
  for (uint32_t other = 0; other < plan.size(); ++other) {
    const std::vector<float>& pushed = plan[other];
    const auto first = pushed.begin() + static_cast<ptrdiff_t>(version);
    const auto last = pushed.begin() + static_cast<ptrdiff_t>(clock);
    bool is_right = seen[other] == *first;
    if (other == worker) {
      is_right = seen[other] == *last;
    } else if (tree.proxy_of(other) == proxy) {
      is_right = *first <= seen[other] && seen[other] <= *last;
    } else if (tree.is_below(other, proxy)) {
      is_right = std::find(first, last + 1, seen[other]) != last + 1;
    }
    if (!is_right) return false;
  }
  return true;
}

// Of a pull of the worker that has closed all clocks before `clock`.
bool is_within_bound(const Plan& plan, const Tree& tree, uint32_t worker, uint64_t clock,
                     uint64_t staleness, const float* seen) {
  for (uint64_t version = clock - std::min(clock, staleness); version <= clock; ++version) {
    if (may_be_seen(plan, tree, worker, clock, version, seen)) return true;
  }
  return false;
}

// Pushes so often, ends the clock, and pulls: with the last push, if there is one.
std::vector<float> work_for_a_clock(Client& client, std::vector<float>& mine, float num_pushes,
                                    int64_t staleness, bool waits_at_once) {
  for (float left = num_pushes; left > 1; --left) {
    expect_done(client.push(kModel, buffers_of(mine), {}));
  }
  ps::CallOptions options;
  options.inline_wait = waits_at_once;
  std::vector<float> out(mine.size());
  if (num_pushes > 0) {
    expect_done(client.push_pull(kModel, buffers_of(mine), buffers_of(out), staleness, options));
  } else {
    client.clock();
    expect_done(client.pull(kModel, buffers_of(out), staleness, options));
  }
  return out;
}

// Each worker has its own pace, pushes up to twice in a clock, and draws the staleness of each
// pull. All pieces of a pull see all pushes of the worker's own clocks, each once, and those of
// everybody's clocks within the bound, each once; an exact pull sees these and no others. Element i
// is of worker i modulo their number: one piece, or with the last seed several.
TEST(ProxyStaleness, PullsOfTreesOfAnyDepthSeeOwnPushesAndTheClocksWithinTheirBounds) {
  constexpr uint64_t kClocks = 25;
  for (int depth = 1; depth <= 4; ++depth) {
    for (uint32_t seed = 0; seed < 4; ++seed) {
      SCOPED_TRACE(str_cat("depth ", depth, ", seed ", seed));
      std::mt19937 random(seed);
      Tree tree(random_parents(depth, random), 2, config_of(seed == 0 ? "tcp" : "shm"));
      const uint32_t num = tree.num_workers();
      const uint64_t count = num * (seed < 3 ? 1 : 15'000);
      tree.create(spec_of(count, "add", Combine::sum), std::vector<float>(count));
      const Plan plan = random_plan(num, kClocks, random);
      tree.run([&](uint32_t worker, Client& client) {
        std::mt19937 own(seed * num + worker);
        std::vector<float> mine(count);
        for (uint64_t i = worker; i < count; i += num) mine[i] = 1;
        for (uint64_t clock = 1; clock <= kClocks; ++clock) {
          for (uint32_t pause = own() % 8; pause > 0; --pause) std::this_thread::yield();
          const uint64_t staleness = std::array{0, 1, 3}[own() % 3];
          const float num_pushes = plan[worker][clock] - plan[worker][clock - 1];
          const std::vector<float> seen = work_for_a_clock(
              client, mine, num_pushes, static_cast<int64_t>(staleness), own() % 2 == 0);
          for (const float* first : {&seen.front(), &seen[count - num]}) {
            ASSERT_TRUE(is_within_bound(plan, tree, worker, clock, staleness, first))
                << "worker " << worker << ", clock " << clock << ", staleness " << staleness;
          }
        }
      });
    }
  }
}

TEST_P(ProxyTree, GoesOnWithoutAWorkerThatLeaves) {
  constexpr uint64_t kCount = 1000;
  Tree tree(parents(), 2, config());
  tree.create(spec_of(kCount, "assign", Combine::sum), std::vector<float>(kCount));
  const auto step = [&](float expected) {
    tree.run([&](uint32_t worker, Client& client) {
      std::vector<float> mine(kCount, static_cast<float>(worker + 1)), out(kCount);
      expect_done(client.push_pull(kModel, buffers_of(mine), buffers_of(out), 0, {}));
      ASSERT_EQ(out, std::vector<float>(kCount, expected));
    });
  };
  const auto num = static_cast<float>(tree.num_workers());
  step(num * (num + 1) / 2);
  tree.clients.back() = nullptr;
  step(num * (num - 1) / 2);
  // And with one that comes, at the clock of the others.
  tree.clients.back() = tree.attach(tree.num_workers() - 1, 1000);
  ASSERT_TRUE(tree.clients.back()
                  ->add_model(kModel, spec_of(kCount, "assign", Combine::sum),
                              tree.server->find_model(kModel)->min_clock())
                  .ok());
  (void)pull(*tree.clients.back(), kCount, ps::kNoBound);
  step(num * (num + 1) / 2);
}

TEST(Proxy, WorkersLearnThatTheParentIsLost) {
  Tree tree({kRoot, 0}, 1, config_of("shm"));
  tree.create(spec_of(100, "assign", Combine::sum), std::vector<float>(100));
  tree.server->close();
  tree.server = nullptr;
  for (auto& client : tree.clients) {
    std::vector<float> mine(100), out(100);
    const auto operation = client->push_pull(kModel, buffers_of(mine), buffers_of(out), 0, {});
    ASSERT_TRUE(operation.ok());
    EXPECT_EQ((*operation)->wait(Deadline::after_s(60)).code(), StatusCode::peer_lost);
  }
}

TEST(Proxy, WorkersMayNotSpeakForOthers) {
  Tree tree({kRoot}, 1, config_of("shm"));
  tree.create(spec_of(100, "assign", Combine::sum), std::vector<float>(100));
  Uplink impostor(config_of("shm"));
  const auto rendezvous = tests::memory_rendezvous();
  ps::PairOptions join;
  join.other = 5;
  auto joined = std::async(std::launch::async, [&] { return tree.server->join(join, rendezvous); });
  ASSERT_TRUE(impostor.connect(5, ps::PairOptions{}, rendezvous).ok());
  ASSERT_TRUE(joined.get().ok());
  impostor.drop(0);
  const Deadline deadline = Deadline::after_s(60);
  while (impostor.error().ok() && !deadline.expired()) std::this_thread::yield();
  EXPECT_EQ(impostor.error().code(), StatusCode::peer_lost);
  EXPECT_TRUE(tree.server->gone().empty() || tree.server->gone() == std::vector<uint32_t>{5});
}

// The sum of two pushes of the workers below a proxy, each with the clock that it came at.
Result<bool> push_sum(ps::Model& model, uint32_t proxy, const std::map<uint32_t, uint64_t>& workers,
                      uint64_t clock, float value) {
  ps::Push head;
  head.worker = ps::kFirstProxy + proxy;
  head.clock = clock;
  head.closes = true;
  head.learning_rate = std::nan("");
  head.merged = &workers;
  head.num_pushes = 2;
  BufferPool::Buffer buffer = model.take_buffer();
  std::fill_n(reinterpret_cast<float*>(buffer.get()), 10, value);
  return model.push(0, 0, head, buffer);
}

Result<bool> push_directly(ps::Model& model, uint32_t worker, uint64_t clock, uint64_t sequence,
                           float value) {
  ps::Push head;
  head.worker = worker;
  head.clock = clock;
  head.sequence = sequence;
  head.closes = true;
  head.learning_rate = std::nan("");
  BufferPool::Buffer buffer = model.take_buffer();
  std::fill_n(reinterpret_cast<float*>(buffer.get()), 10, value);
  return model.push(0, 0, head, buffer);
}

std::vector<float> version_of(ps::Model& model, uint64_t clock) {
  std::vector<float> seen(10);
  const std::byte* data = nullptr;
  EXPECT_TRUE(
      model.pull(0, 0, clock, false, reinterpret_cast<std::byte*>(seen.data()), &data).value());
  return seen;
}

ps::ModelOptions four_workers() {
  ps::ModelOptions options;
  options.spec = spec_of(10, "add", Combine::sum);
  options.shards = {0};
  options.num_expected = 4;
  options.rule = rule_of("add");
  return options;
}

// Workers 0 and 1 lose their proxy: of clock 0, which is in a version, they repeat nothing; of
// clock 1, which is not, everything.
TEST(Proxy, WhatIsInNoVersionIsForgottenWithTheTreeAndRepeatedOnce) {
  ps::EventCount events;
  ps::Model model(four_workers(), events);
  model.seal();
  const std::map<uint32_t, uint64_t> below{{0, 0}, {1, 0}};
  const auto push_clock = [&](uint64_t clock, float value) {
    ASSERT_TRUE(push_sum(model, 0, below, clock, value).value());
    model.tick_all(below, clock + 1);
  };
  push_clock(0, 1);
  for (uint32_t worker : {2, 3}) ASSERT_TRUE(push_directly(model, worker, 0, 1, 10).value());
  EXPECT_EQ(version_of(model, 1), std::vector<float>(10, 21));
  push_clock(1, 1000);
  ASSERT_TRUE(push_directly(model, 2, 1, 2, 20).value());

  model.forget_parts(below);
  EXPECT_EQ(model.version(), 1U);
  EXPECT_EQ(model.min_clock(), 0U);  // of workers 2 and 3, whose clocks are those of the piece
  for (uint32_t worker : {0, 1}) {
    model.attach(worker, 0, 7);
    ASSERT_TRUE(push_directly(model, worker, 0, 1, 500).value());
    ASSERT_TRUE(push_directly(model, worker, 1, 2, 2).value());
    ASSERT_TRUE(push_directly(model, worker, 1, 2, 2).value());  // its answer was lost
  }
  ASSERT_TRUE(push_directly(model, 3, 1, 2, 30).value());
  EXPECT_EQ(version_of(model, 2), std::vector<float>(10, 21 + 20 + 4 + 30));
}

// A worker that had pushed clock 0 itself comes by a proxy at clock 1, where another is at clock 0.
TEST(Proxy, SumsOfAClockConcernThoseThatWereThere) {
  ps::EventCount events;
  ps::ModelOptions options = four_workers();
  options.num_expected = 3;
  ps::Model model(std::move(options), events);
  model.seal();
  for (uint32_t worker : {0, 2}) ASSERT_TRUE(push_directly(model, worker, 0, 1, 5).value());
  const std::map<uint32_t, uint64_t> below{{0, 1}, {1, 0}};
  ASSERT_TRUE(push_sum(model, 0, below, 0, 7).value());
  EXPECT_EQ(version_of(model, 1), std::vector<float>(10, 17));
  // What worker 0 has pushed itself stays when the tree ends.
  ASSERT_TRUE(push_sum(model, 0, below, 1, 1000).value());
  model.forget_parts(below);
  ASSERT_TRUE(push_sum(model, 1, {{0, 1}, {1, 1}}, 1, 100).value());
  ASSERT_TRUE(push_directly(model, 2, 1, 2, 1).value());
  EXPECT_EQ(version_of(model, 2), std::vector<float>(10, 118));
}

TEST(Proxy, ALateProxyOfATreeThatHasEndedDoesNotTakeThePlaceOfAnother) {
  const Config config = config_of("shm");
  Server server(ps::ServerOptions{0, 1, 2, config});
  ASSERT_EQ(server.end_tree(), 1U);
  ps::PairOptions join;
  join.other = ps::kFirstProxy;
  Uplink uplink(config);
  const auto rendezvous = tests::memory_rendezvous();
  auto joined = std::async(std::launch::async, [&] { return server.join(join, rendezvous, 1); });
  ASSERT_TRUE(uplink.connect(ps::kFirstProxy, ps::PairOptions{}, rendezvous).ok());
  ASSERT_TRUE(joined.get().ok());
  EXPECT_EQ(server.join(join, tests::memory_rendezvous(), 0).code(), StatusCode::aborted);
  EXPECT_TRUE(server.session_status().at(0).connected);
}

TEST(Proxy, ASumThatIsRepeatedInPartIsRefused) {
  ps::EventCount events;
  ps::Model model(four_workers(), events);
  model.seal();
  ASSERT_TRUE(push_sum(model, 0, {{0, 0}, {1, 0}}, 0, 1).value());
  EXPECT_EQ(push_sum(model, 0, {{1, 0}, {2, 0}}, 0, 1).status().code(), StatusCode::protocol_error);
}

class FailedUpstream : public ps::Upstream {
 public:
  explicit FailedUpstream(const Status& error) : error_(error) {}
  void start() override {}
  bool has_started() const override { return true; }
  void attach(uint32_t, uint32_t, uint64_t, uint64_t) override {}
  void drop(uint32_t worker) override { dropped.push_back(worker); }
  void forward(ps::Forwarded) override {}
  bool help(std::chrono::milliseconds) override { return false; }
  void wake() override {}
  std::shared_ptr<const std::atomic<bool>> set(std::shared_ptr<ps::Model>, uint32_t) override {
    return nullptr;
  }
  void fetch(std::shared_ptr<ps::Model>, uint32_t, uint64_t) override {}
  void on_failure(std::function<void(const Status&)>) override {}
  Status error() const override { return error_; }
  uint64_t number() const override { return 0; }
  void close() override {}

  std::vector<uint32_t> dropped;

 private:
  const Status error_;
};

// Keeps what goes up.
class KeepingUpstream : public FailedUpstream {
 public:
  KeepingUpstream() : FailedUpstream(Status()) {}
  void forward(ps::Forwarded window) override { kept.push_back(std::move(window)); }
  std::vector<ps::Forwarded> kept;
};

// A proxy's model, of 10 elements, whose weights are sums.
class ModelOfAProxy : public ::testing::Test {
 protected:
  void make(uint64_t base, uint64_t own_from, float value) {
    ps::ModelOptions options = four_workers();
    options.num_expected = 0;
    options.rule = rule_of("assign");
    options.upstream = &upstream_;
    options.base = base;
    model_ = std::make_shared<ps::Model>(std::move(options), events_);
    model_->show_own_from(own_from);
    for (uint32_t worker : {0, 1}) model_->attach(worker, base, 7);
    const std::vector<float> values(10, value);
    model_->take_value(0, 0, base, reinterpret_cast<const std::byte*>(values.data()));
    model_->take_values();
  }

  void push(uint32_t worker, uint64_t clock, float value) {
    ASSERT_TRUE(push_directly(*model_, worker, clock, clock + 1, value).value());
  }

  // The oldest window that went up, with what others have pushed.
  void answer(float value) {
    ps::Forwarded window = std::move(upstream_.kept.front());
    upstream_.kept.erase(upstream_.kept.begin());
    std::fill_n(reinterpret_cast<float*>(window.answer.get()), 10, value);
    model_->take_answer(0, 0, window.clock, window.answer);
  }

  float seen(uint64_t own_before) {
    std::vector<float> values(10);
    const std::byte* data = nullptr;
    EXPECT_TRUE(
        model_->pull(0, 0, 0, false, reinterpret_cast<std::byte*>(values.data()), &data, own_before)
            .value());
    EXPECT_EQ(values, std::vector<float>(10, values[0]));
    return values[0];
  }

  ps::EventCount events_;
  KeepingUpstream upstream_;
  std::shared_ptr<ps::Model> model_;
};

TEST_F(ModelOfAProxy, ShowsAPushUntilTheVersionThatContainsIt) {
  make(0, 0, 1);
  push(0, 0, 5);
  EXPECT_EQ(seen(0), 1);
  EXPECT_EQ(seen(1), 6);
  push(1, 0, 3);
  ASSERT_EQ(upstream_.kept.size(), 1U);
  EXPECT_EQ(seen(1), 9);
  push(0, 1, 100);
  EXPECT_EQ(seen(1), 9);
  EXPECT_EQ(seen(2), 109);
  answer(1 + 8 + 20);
  EXPECT_EQ(seen(0), 29);
  EXPECT_EQ(seen(1), 29);
  EXPECT_EQ(seen(2), 129);
}

// The server's piece had come to clock 2 when the last tree ended, and others to clock 1 only.
TEST_F(ModelOfAProxy, ShowsNoPushThatMayBeRepeatedBeforeItsCopyHasCaughtUp) {
  make(1, 2, 21);
  push(0, 1, 5);  // which is in the 21
  EXPECT_EQ(seen(2), 21);
  push(1, 1, 3);
  EXPECT_EQ(seen(2), 21);
  answer(21);
  push(0, 2, 100);
  EXPECT_EQ(seen(2), 21);
  EXPECT_EQ(seen(3), 121);
}

// They come another way, and the server must not take them for lost meanwhile.
TEST(Proxy, AProxyWithoutItsParentTakesNoWorkerForLost) {
  for (const Status& error : {Status(), Status(StatusCode::peer_lost, "the parent has gone")}) {
    const auto upstream = std::make_shared<FailedUpstream>(error);
    ps::ServerOptions options;
    options.upstream = upstream;
    ps::Server proxy(options);
    proxy.give_up(3);
    const std::vector<uint32_t> expected(error.ok() ? 1 : 0, 3);
    EXPECT_EQ(proxy.gone(), expected);
    EXPECT_EQ(upstream->dropped, expected);
  }
}

TEST(Proxy, AWorkerThatIsHeldBeginsWhereNoPieceIsBeyond) {
  ps::EventCount events;
  ps::ModelOptions options = four_workers();
  options.num_expected = 1;
  ps::Model model(std::move(options), events);
  model.seal();
  ASSERT_TRUE(push_directly(model, 0, 0, 1, 1).value());  // the piece is at 1, the worker at 0
  EXPECT_EQ(model.hold(5).clock, 1U);
  ASSERT_TRUE(push_directly(model, 0, 1, 2, 1).value());
  EXPECT_EQ(model.version(), 1U);  // without worker 5
  EXPECT_EQ(model.hold(0).clock, 0U);
  EXPECT_FALSE(model.hold(0).is_new);
}

// What a proxy sends again is not added again; each window has the pushes of each worker once.
TEST(Proxy, RepeatedWindowsAreAddedOnce) {
  ps::EventCount events;
  ps::ModelOptions options;
  options.spec = spec_of(10, "add", Combine::mean);
  options.shards = {0};
  options.num_expected = 4;
  options.rule = rule_of("add");
  ps::Model model(std::move(options), events);
  model.seal();
  const auto push = [&](uint32_t proxy, const std::map<uint32_t, uint64_t>& workers, float value) {
    ASSERT_TRUE(push_sum(model, proxy, workers, 0, value).value());
  };
  push(0, {{0, 0}, {1, 0}}, 6);
  push(0, {{0, 0}, {1, 0}}, 6);  // again, over a new connection
  push(1, {{2, 0}, {3, 0}}, 2);
  push(1, {{2, 0}, {3, 0}}, 2);  // when the window is over
  std::vector<float> seen(10);
  const std::byte* data = nullptr;
  ASSERT_TRUE(model.pull(0, 0, 1, false, reinterpret_cast<std::byte*>(seen.data()), &data).value());
  EXPECT_EQ(seen, std::vector<float>(10, 2));
}

}  // namespace
}  // namespace dmlcomm::proxy
