#include "tests/ranks.h"

#include <gtest/gtest.h>

#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <future>
#include <mutex>
#include <thread>

#include "base/str_cat.h"
#include "transport/rendezvous.h"

namespace dmlcomm::tests {
namespace {

class MemoryRendezvous final : public transport::Rendezvous {
 public:
  Result<std::vector<std::string>> exchange(const std::string& name, int rank, int num_ranks,
                                            const std::string& value,
                                            std::chrono::milliseconds timeout) override {
    std::unique_lock lock(mutex_);
    std::map<int, std::string>& values = values_[name];
    values[rank] = value;
    changed_.notify_all();
    const auto all = static_cast<size_t>(num_ranks);
    if (!changed_.wait_for(lock, timeout, [&] { return values.size() == all; })) {
      return Status(StatusCode::timeout, str_cat("not all ranks have published '", name, "'"));
    }
    std::vector<std::string> by_rank;
    for (const auto& [_, each] : values) by_rank.push_back(each);
    return by_rank;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, std::map<int, std::string>> values_;  // by name and rank
};

std::shared_ptr<engine::Communicator> join(int rank, int num_ranks, const Config& config,
                                           uint64_t first_sequence,
                                           const std::shared_ptr<MemoryRendezvous>& rendezvous) {
  engine::CommunicatorOptions options;
  options.rank = rank;
  options.num_ranks = num_ranks;
  options.name = "test";
  options.config = config;
  options.timeout = std::chrono::seconds(60);
  options.first_sequence = first_sequence;
  auto communicator = engine::Communicator::create(options, rendezvous);
  EXPECT_TRUE(communicator.ok()) << communicator.status();
  return communicator.ok() ? *communicator : nullptr;
}

}  // namespace

std::shared_ptr<transport::Rendezvous> memory_rendezvous() {
  return std::make_shared<MemoryRendezvous>();
}

const std::vector<Transport>& all_transports() {
  static const std::vector<Transport> transports = [] {
    Config board;
    Config single_copy;
    single_copy.shm_board_bytes = 0;
    Config slots;
    slots.shm_single_copy = false;
    Config ring = single_copy;
    ring.shm_single_copy = false;
    Config tcp;
    tcp.transport = TransportChoice::tcp;
    return std::vector<Transport>{{"board", board},
                                  {"slots", slots},
                                  {"single_copy", single_copy},
                                  {"ring", ring},
                                  {"tcp", tcp}};
  }();
  return transports;
}

std::vector<std::shared_ptr<engine::Communicator>> make_group(int num_ranks, const Config& config,
                                                              uint64_t first_sequence) {
  auto rendezvous = std::make_shared<MemoryRendezvous>();
  std::vector<std::future<std::shared_ptr<engine::Communicator>>> joining;
  for (int rank = 0; rank < num_ranks; ++rank) {
    joining.push_back(
        std::async(std::launch::async, join, rank, num_ranks, config, first_sequence, rendezvous));
  }
  std::vector<std::shared_ptr<engine::Communicator>> group;
  for (auto& rank : joining) group.push_back(rank.get());
  return group;
}

void run_ranks(int num_ranks, const Config& config,
               const std::function<void(engine::Communicator&)>& body, double deadline_s,
               uint64_t first_sequence) {
  auto group = make_group(num_ranks, config, first_sequence);
  std::vector<std::future<void>> running;
  for (auto& communicator : group) {
    // Each rank closes by itself when it has done its part, as processes do.
    running.push_back(
        std::async(std::launch::async, [&body, own = std::move(communicator)]() mutable {
          const std::shared_ptr<engine::Communicator> rank = std::move(own);
          body(*rank);
        }));
  }
  const auto deadline =
      std::chrono::steady_clock::now() + std::chrono::duration<double>(deadline_s);
  for (size_t rank = 0; rank < running.size(); ++rank) {
    if (running[rank].wait_until(deadline) == std::future_status::ready) continue;
    std::fprintf(stderr, "rank %zu of %d is not done after %.0f s\n", rank, num_ranks, deadline_s);
    std::abort();  // a hang must not hang the test: the core shows where each thread is
  }
}

}  // namespace dmlcomm::tests
