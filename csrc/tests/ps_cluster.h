// Workers and servers as threads of one process, with real connections.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <future>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ps/client.h"
#include "ps/server.h"
#include "tests/ranks.h"

namespace dmlcomm::ps::tests {

using namespace dmlcomm::tests;

constexpr uint32_t kModel = 1;
constexpr uint64_t kIncarnation = 1;

inline Buffers buffers_of(std::vector<float>& memory) {
  return {{{reinterpret_cast<std::byte*>(memory.data()), memory.size()}}};
}

// A hang fails the test at the deadline. An operation that is done only then has hung, too.
inline void expect_done(const Result<Client::OperationPtr>& operation) {
  ASSERT_TRUE(operation.ok()) << operation.status();
  const Deadline deadline = Deadline::after_s(60);
  const Status status = (*operation)->wait(deadline);
  ASSERT_TRUE(status.ok()) << status;
  ASSERT_FALSE(deadline.expired());
}

// It is stuck, for want of these servers. Workers wait in slices, too.
inline void expect_lost(const Client::OperationPtr& operation,
                        const std::vector<uint32_t>& servers) {
  const Deadline deadline = Deadline::after_s(60);
  Status status(StatusCode::timeout, "not yet");
  while (status.code() == StatusCode::timeout && !deadline.expired()) {
    status = operation->wait(Deadline::after_s(0.1));
  }
  EXPECT_EQ(status.code(), StatusCode::peer_lost) << status;
  EXPECT_EQ(operation->lost(), servers);
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

  void connect(uint32_t worker, uint32_t server, uint8_t life = 0) {
    const auto rendezvous = tests::memory_rendezvous();
    PairOptions join;
    join.other = worker;
    auto joined = std::async(std::launch::async, [&] {
      return servers[server]->join(join, rendezvous, 0, kIncarnation);
    });
    PairOptions connect;
    connect.other = server;
    const Status status = clients[worker]->connect(connect, rendezvous, life);
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

inline ModelSpec spec_of(uint64_t count, const std::string& rule, Combine combine) {
  ModelSpec spec;
  spec.name = "m";
  spec.spaces = {{DType::f32, count, 0, DType::f32}};
  spec.rule = rule;
  spec.combine = combine;
  return spec;
}

inline Config config_of(const std::string& name) {
  Config config;
  config.shm_board_bytes = 0;
  if (name == "tcp") config.transport = TransportChoice::tcp;
  if (name == "ring") config.shm_single_copy = false;
  return config;
}

}  // namespace dmlcomm::ps::tests
