// Exceptions in the threads of the core: what they worked on fails with a reason, and the process
// goes on. The allocator of this executable refuses memory when it is told to.

#include <gtest/gtest.h>

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <future>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "base/exceptions.h"
#include "base/log.h"
#include "device/staging.h"
#include "proxy/arbiter.h"
#include "ps/client.h"
#include "ps/server.h"
#include "tests/ranks.h"
#include "tests/thread_device.h"

namespace {

constexpr size_t kLargeBytes = 64 << 10;
// So many of the next allocations of that size and more are refused, but for those of the test
// itself. With a name only threads of that name are concerned.
std::atomic<int> num_refusals{0};
std::atomic<size_t> least_bytes{kLargeBytes};
std::atomic<const char*> refused_thread{nullptr};
thread_local bool is_spared = false;

bool is_concerned() {
  const char* const wanted = refused_thread.load();
  if (is_spared || wanted == nullptr) return !is_spared;
  char name[16] = "";
  return pthread_getname_np(pthread_self(), name, sizeof(name)) == 0 &&
         std::strcmp(name, wanted) == 0;
}

bool takes_refusal() {
  int left = num_refusals.load();
  while (left > 0) {
    if (num_refusals.compare_exchange_weak(left, left - 1)) return true;
  }
  return false;
}

void* allocate(size_t bytes, size_t alignment) {
  if (num_refusals.load() > 0 && bytes >= least_bytes.load() && is_concerned() && takes_refusal()) {
    throw std::bad_alloc();
  }
  void* memory = nullptr;
  if (posix_memalign(&memory, std::max(alignment, sizeof(void*)), bytes) != 0) {
    throw std::bad_alloc();
  }
  return memory;
}

void* allocate_or_null(size_t bytes) noexcept {
  try {
    return allocate(bytes, alignof(std::max_align_t));
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}

}  // namespace

void* operator new(size_t bytes, const std::nothrow_t&) noexcept { return allocate_or_null(bytes); }
void* operator new[](size_t bytes, const std::nothrow_t&) noexcept {
  return allocate_or_null(bytes);
}
void* operator new(size_t bytes) { return allocate(bytes, alignof(std::max_align_t)); }
void* operator new[](size_t bytes) { return allocate(bytes, alignof(std::max_align_t)); }
void* operator new(size_t bytes, std::align_val_t alignment) {
  return allocate(bytes, static_cast<size_t>(alignment));
}
void* operator new[](size_t bytes, std::align_val_t alignment) {
  return allocate(bytes, static_cast<size_t>(alignment));
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete[](void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, size_t) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete[](void* memory, size_t) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::align_val_t) noexcept {
  std::free(memory);
}
[[gnu::noinline]] void operator delete[](void* memory, std::align_val_t) noexcept {
  std::free(memory);
}
[[gnu::noinline]] void operator delete(void* memory, size_t, std::align_val_t) noexcept {
  std::free(memory);
}
[[gnu::noinline]] void operator delete[](void* memory, size_t, std::align_val_t) noexcept {
  std::free(memory);
}

namespace dmlcomm {
namespace {

using engine::Communicator;
using engine::OperationPtr;
using ::testing::Test;

constexpr std::chrono::seconds kLimit{60};

Config over_tcp() {
  Config config;
  config.transport = TransportChoice::tcp;
  return config;
}

class Exceptions : public Test {
 protected:
  void SetUp() override { is_spared = true; }
  void TearDown() override {
    num_refusals.store(0);
    least_bytes.store(kLargeBytes);
    refused_thread.store(nullptr);
  }
  // The next allocation of such a thread, however small.
  static void refuse_one(const char* thread = nullptr) {
    least_bytes.store(1);
    refused_thread.store(thread);
    num_refusals.store(1);
  }
};

TEST_F(Exceptions, ToTellOfMissingMemoryTakesNone) {
  const Status lost(StatusCode::peer_lost, "a text that is longer than a string can hold itself");
  device::StagedOperation operation(1, nullptr);
  refuse_one();
  is_spared = false;
  const Status status = without_exceptions([]() -> Status { throw std::bad_alloc(); });
  EXPECT_EQ(num_refusals.load(), 1);
  operation.complete(lost);
  EXPECT_EQ(num_refusals.exchange(1), 0);
  log_error("a line that is longer than a string can hold without memory of its own");
  is_spared = true;
  EXPECT_EQ(num_refusals.load(), 0);
  EXPECT_EQ(status.to_string(), "internal_error: no memory left");
  EXPECT_EQ(operation.wait(kLimit).to_string(), "peer_lost: no memory left");
}

// An operation of the host that has ended already.
device::Part empty_part() {
  device::Part part;
  part.bytes = 64;
  part.start = [](std::byte*) {
    auto operation = std::make_shared<device::StagedOperation>(1, nullptr);
    operation->complete(Status());
    return operation;
  };
  return part;
}

TEST_F(Exceptions, NoMemoryInTheThreadOfADeviceFailsItsOperations) {
  tests::ThreadDevice device;
  auto staging = device::Staging::create(device, 1024);
  ASSERT_TRUE(staging.ok()) << staging.status();
  EXPECT_EQ((*staging)->run({empty_part()}, 1)->wait(kLimit).to_string(), "ok");
  refuse_one("dmlcomm-stage");
  const auto failed = (*staging)->run({empty_part(), empty_part()}, 2);
  EXPECT_EQ(failed->wait(kLimit).to_string(), "internal_error: no memory left");
  EXPECT_EQ(num_refusals.load(), 0);
  const auto later = (*staging)->run({empty_part()}, 3);
  EXPECT_EQ(later->wait(kLimit).to_string(), "internal_error: no memory left");
  EXPECT_TRUE((*staging)->drain(kLimit));
  (*staging)->stop({StatusCode::aborted, "the group was closed"}, false);
}

TEST_F(Exceptions, AnArbiterWithoutMemoryForARoundTakesTheNextOne) {
  proxy::Arbiter arbiter({true, 0.1});
  const auto seat = *transport::JobSeat::create();
  transport::NicCredit credit(seat, "lo", transport::Direction::out);
  refuse_one();
  (void)arbiter.add("job", 0, *transport::JobSeat::open(seat->descriptor()));
  const Deadline deadline = Deadline::after_s(60);
  while (num_refusals.load() > 0 && !deadline.expired()) std::this_thread::yield();
  const int64_t refused_ns = now_ns();
  while (seat->page().beat_ns.load() <= refused_ns && !deadline.expired()) {
    std::this_thread::yield();
  }
  EXPECT_FALSE(deadline.expired());
  arbiter.close();
}

// As a future, since a thread that waits for the operation would drive it.
std::future<Status> status_of(const OperationPtr& operation) {
  auto ended = std::make_shared<std::promise<Status>>();
  operation->on_done([ended](const Status& status) { ended->set_value(status); });
  return ended->get_future();
}

Status take(std::future<Status>& ended) {
  if (ended.wait_for(kLimit) != std::future_status::ready) std::abort();  // a hang
  return ended.get();
}

std::vector<Status> all_reduce(const std::vector<std::shared_ptr<Communicator>>& group,
                               std::vector<std::vector<float>>& data) {
  std::vector<std::future<Status>> ended;
  for (size_t rank = 0; rank < group.size(); ++rank) {
    ended.push_back(status_of(group[rank]->all_reduce(data[rank].data(), data[rank].size(),
                                                      DType::f32, ReduceOp::sum, {})));
  }
  std::vector<Status> all;
  for (auto& one : ended) all.push_back(take(one));
  return all;
}

TEST_F(Exceptions, NoMemoryInTheProgressThreadFailsTheGroupOnAllRanks) {
  std::vector<std::vector<float>> data(3, std::vector<float>(1'000'000, 1.0f));
  const auto group = tests::make_group(3, over_tcp());
  num_refusals.store(1);
  for (const Status& status : all_reduce(group, data)) {
    EXPECT_EQ(status.code(), StatusCode::internal_error);
    EXPECT_NE(status.message().find("failed during all_reduce"), std::string::npos) << status;
    EXPECT_NE(status.message().find("no memory left"), std::string::npos) << status;
  }
  EXPECT_EQ(num_refusals.load(), 0);
  for (const auto& communicator : group) communicator->close();
  // The process has lost nothing but this group.
  const auto next = tests::make_group(3, over_tcp());
  for (const Status& status : all_reduce(next, data)) EXPECT_TRUE(status.ok()) << status;
}

TEST_F(Exceptions, NoMemoryInAThreadThatWaitsIsAStatusToo) {
  const auto group = tests::make_group(2, over_tcp());
  num_refusals.store(1);
  std::vector<std::future<Status>> ranks;
  for (const auto& communicator : group) {
    ranks.push_back(std::async(std::launch::async, [communicator] {
      is_spared = true;
      std::vector<float> data(1'000'000, 1.0f);
      engine::OpOptions options;
      options.inline_wait = true;
      const auto operation =
          communicator->all_reduce(data.data(), data.size(), DType::f32, ReduceOp::sum, options);
      is_spared = false;
      const Status status = operation->wait(kLimit);
      is_spared = true;
      return status;
    }));
  }
  for (auto& rank : ranks) {
    const Status status = rank.get();
    EXPECT_EQ(status.code(), StatusCode::internal_error) << status;
  }
}

TEST_F(Exceptions, ACallbackThatThrowsStopsNobodyElse) {
  const auto group = tests::make_group(2, over_tcp());
  std::vector<std::vector<float>> data(4, std::vector<float>(10, 1.0f));
  std::vector<std::future<Status>> ended;
  for (int i = 0; i < 4; ++i) {
    const auto operation =
        group[i / 2]->all_reduce(data[i].data(), data[i].size(), DType::f32, ReduceOp::sum, {});
    // Those of rank 0 wait for rank 1. One that has ended would call, and throw, here.
    if (i / 2 == 0) {
      operation->on_done([](const Status&) { throw std::runtime_error("of the caller"); });
    }
    ended.push_back(status_of(operation));
  }
  for (auto& one : ended) EXPECT_TRUE(take(one).ok());
}

}  // namespace
}  // namespace dmlcomm

namespace dmlcomm::ps {
namespace {

constexpr uint32_t kModel = 1;
constexpr uint64_t kCount = 100'000;  // of one piece
constexpr uint64_t kRows = 20'000;

Buffers buffers_of(std::vector<float>& memory) {
  return {{{reinterpret_cast<std::byte*>(memory.data()), memory.size()}}};
}

// A server with two workers, and a model of floats that travel as 16 bits, or of a table.
class ServerExceptions : public Exceptions {
 protected:
  void SetUp() override {
    Exceptions::SetUp();
    for (uint32_t worker : {0, 1}) {
      clients.push_back(std::make_unique<Client>(ClientOptions{worker, 1, 1, over_tcp()}));
      connect(worker);
    }
  }

  void connect(uint32_t worker) {
    const auto rendezvous = tests::memory_rendezvous();
    PairOptions join, meet;
    join.other = worker;
    auto joined = std::async(std::launch::async, [&] { return server.join(join, rendezvous); });
    const Status status = clients[worker]->connect(meet, rendezvous);
    EXPECT_TRUE(status.ok()) << status;
    EXPECT_TRUE(joined.get().ok());
  }

  void create(std::vector<Space> spaces) {
    ModelSpec spec;
    spec.name = "m";
    spec.rule = "add";
    spec.combine = Combine::sum;
    spec.spaces = std::move(spaces);
    ASSERT_TRUE(
        server.create_model(kModel, spec, std::move(make_rule(spec.rule, spec.options).value()))
            .ok());
    for (auto& client : clients) ASSERT_TRUE(client->add_model(kModel, spec, 0).ok());
    ASSERT_TRUE(server.seal(kModel).ok());
  }

  Server server{ServerOptions{0, 1, 2, over_tcp()}};
  std::vector<std::unique_ptr<Client>> clients;
};

TEST_F(ServerExceptions, ASessionWithoutMemoryEndsAndItsWorkerRepeats) {
  create({{DType::f32, kRows, 1, DType::f32}});
  std::vector<int64_t> numbers(kRows);
  for (uint64_t i = 0; i < kRows; ++i) numbers[i] = static_cast<int64_t>(i);
  std::vector<float> values(kRows, 1.0f);
  const auto rows = [&](std::vector<float>& of) {
    return Client::RowMemory{0, numbers.data(), kRows, reinterpret_cast<std::byte*>(of.data())};
  };
  num_refusals.store(1);
  const auto pushed = clients[0]->push_rows(kModel, rows(values), {});
  ASSERT_TRUE(pushed.ok());
  const Status status = (*pushed)->wait(Deadline::after_s(60));
  EXPECT_EQ(status.code(), StatusCode::peer_lost) << status;
  EXPECT_NE(status.message().find("no memory left"), std::string::npos) << status;
  connect(0);
  EXPECT_TRUE((*pushed)->wait(Deadline::after_s(60)).ok());
  for (auto& client : clients) client->clock();
  for (auto& client : clients) {
    std::vector<float> found(kRows);
    const auto pulled = client->pull_rows(kModel, rows(found), 0, {});
    ASSERT_TRUE(pulled.ok());
    ASSERT_TRUE((*pulled)->wait(Deadline::after_s(60)).ok());
    EXPECT_EQ(found, values);
  }
}

// The piece may have taken half of the push.
TEST_F(ServerExceptions, AModelThatLackedMemoryFailsForAllWorkersAndTheServerGoesOn) {
  create({{DType::f32, kCount, 0, DType::f16}});
  std::vector<float> ones(kCount, 1.0f);
  std::vector<float> found(kCount);
  const auto first = clients[0]->push(kModel, buffers_of(ones), {});
  ASSERT_TRUE((*first)->wait(Deadline::after_s(60)).ok());
  num_refusals.store(1);
  const auto second = clients[1]->push(kModel, buffers_of(ones), {});
  const Status status = (*second)->wait(Deadline::after_s(60));
  EXPECT_NE(status.message().find("no memory left"), std::string::npos) << status;
  const auto pulled = clients[0]->pull(kModel, buffers_of(found), 0, {});
  const Status also = (*pulled)->wait(Deadline::after_s(60));
  EXPECT_NE(also.message().find("no memory left"), std::string::npos) << also;
  EXPECT_EQ(server.model_status().size(), 1u);
}

}  // namespace
}  // namespace dmlcomm::ps
