// Operations on memory of a device, by staging: ranks are threads, and so are the queues of their
// devices (thread_device.h).

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "device/staged_communicator.h"
#include "tests/ranks.h"
#include "tests/thread_device.h"

namespace dmlcomm::tests {
namespace {

using device::StagedCommunicator;
using device::StagedOperation;
using engine::OperationPtr;

constexpr size_t kPerRank = StagedCommunicator::kLeastBytesPerRank;

using Floats = std::vector<float>;

std::string run(const OperationPtr& operation) {
  return operation->wait(std::chrono::milliseconds(0)).to_string();
}

// Exactly summable, different for every rank and place.
Floats values_of(int rank, size_t count) {
  Floats values(count);
  for (size_t i = 0; i < count; ++i) values[i] = static_cast<float>((rank + 1) * 3 + i % 101);
  return values;
}

Floats sums(int num_ranks, size_t count) {
  Floats total(count, 0);
  for (int rank = 0; rank < num_ranks; ++rank) {
    const Floats values = values_of(rank, count);
    for (size_t i = 0; i < count; ++i) total[i] += values[i];
  }
  return total;
}

Span bytes_of(const Floats& values) { return {values.data(), values.size() * sizeof(float)}; }

std::vector<Span> bytes_of(const std::vector<Floats>& list) {
  std::vector<Span> spans;
  for (const Floats& values : list) spans.push_back(bytes_of(values));
  return spans;
}

bool all_ones(const Floats& values) {
  const auto* bytes = reinterpret_cast<const unsigned char*>(values.data());
  return std::all_of(bytes, bytes + values.size() * sizeof(float),
                     [](unsigned char byte) { return byte == 0xff; });
}

// The ranks of one group, each with a device.
class Group {
 public:
  Group(int num_ranks, const Config& config)
      : hosts_(make_group(num_ranks, config)),
        collectives_(make_group(num_ranks, config)),
        devices_(static_cast<size_t>(num_ranks)) {
    for (size_t rank = 0; rank < hosts_.size(); ++rank) {
      auto meet = [communicator = collectives_[rank]] { return Result(communicator); };
      auto made = StagedCommunicator::create(devices_[rank], hosts_[rank], meet, 0);
      EXPECT_TRUE(made.ok()) << made.status();
      ranks_.push_back(*made);
    }
  }

  StagedCommunicator& operator[](int rank) { return *ranks_[static_cast<size_t>(rank)]; }
  engine::Communicator& host(int rank) { return *hosts_[static_cast<size_t>(rank)]; }
  ThreadDevice& device(int rank) { return devices_[static_cast<size_t>(rank)]; }

  // On every rank beside the others; each closes when it has done its part.
  void run_ranks(const std::function<void(StagedCommunicator&)>& body) {
    std::vector<std::thread> threads;
    for (const auto& rank : ranks_) {
      threads.emplace_back([&body, &rank] {
        body(*rank);
        rank->close();
      });
    }
    for (std::thread& thread : threads) thread.join();
  }

 private:
  std::vector<std::shared_ptr<engine::Communicator>> hosts_;
  std::vector<std::shared_ptr<engine::Communicator>> collectives_;
  std::vector<ThreadDevice> devices_;  // before the communicators that use them
  std::vector<std::shared_ptr<StagedCommunicator>> ranks_;
};

using Case = std::tuple<const char*, int>;  // transport, ranks

class StagingTest : public testing::TestWithParam<Case> {
 protected:
  const Config& config() const {
    const auto& all = all_transports();
    return std::find_if(
               all.begin(), all.end(),
               [](const Transport& transport) { return transport.name == std::get<0>(GetParam()); })
        ->config;
  }
  int num_ranks() const { return std::get<1>(GetParam()); }
  size_t n() const { return static_cast<size_t>(num_ranks()); }

  // Of elements: nothing, less than a part of `bytes`, around one, and more than the ring holds.
  static std::vector<size_t> counts_around(size_t bytes) {
    const size_t count = bytes / sizeof(float);
    return {0, 1, count - 1, count, count + 1, 5 * count + 3};
  }
};

TEST_P(StagingTest, AllReduceSums) {
  Group group(num_ranks(), config());
  group.run_ranks([&](StagedCommunicator& rank) {
    for (const size_t count : counts_around(n() * kPerRank)) {
      Floats data = values_of(rank.rank(), count);
      ASSERT_EQ(run(rank.all_reduce(data.data(), count, DType::f32, ReduceOp::sum, {})), "ok");
      ASSERT_EQ(data, sums(num_ranks(), count)) << count;
    }
  });
}

TEST_P(StagingTest, ReduceAndBroadcastHaveARoot) {
  Group group(num_ranks(), config());
  group.run_ranks([&](StagedCommunicator& rank) {
    for (const size_t count : counts_around(n() * kPerRank)) {
      const int root = num_ranks() - 1;
      const Floats input = values_of(rank.rank(), count);
      Floats output(count, -1);
      ASSERT_EQ(
          run(rank.reduce(input.data(), output.data(), count, DType::f32, ReduceOp::sum, root, {})),
          "ok");
      ASSERT_EQ(output, rank.rank() == root ? sums(num_ranks(), count) : Floats(count, -1));
      ASSERT_EQ(input, values_of(rank.rank(), count));
      ASSERT_EQ(run(rank.broadcast(bytes_of(output), root, {})), "ok");
      ASSERT_EQ(output, sums(num_ranks(), count));
    }
  });
}

// Rank p's piece is uneven, and empty for some.
size_t piece_count(size_t rank, size_t count) { return rank % 3 == 2 ? 0 : count / (rank + 1); }

TEST_P(StagingTest, AllGatherCollectsUnevenPieces) {
  Group group(num_ranks(), config());
  group.run_ranks([&](StagedCommunicator& rank) {
    for (const size_t count : counts_around(kPerRank)) {
      const auto own = static_cast<size_t>(rank.rank());
      std::vector<Floats> outputs;
      for (size_t p = 0; p < n(); ++p) outputs.emplace_back(piece_count(p, count), -1);
      const Floats input = values_of(rank.rank(), piece_count(own, count));
      const bool is_in_place = count % 2 == 1;
      if (is_in_place) outputs[own] = input;
      const Span from = bytes_of(is_in_place ? outputs[own] : input);
      ASSERT_EQ(run(rank.all_gather(from, bytes_of(outputs), {})), "ok");
      for (size_t p = 0; p < n(); ++p) {
        ASSERT_EQ(outputs[p], values_of(static_cast<int>(p), piece_count(p, count)));
      }
    }
  });
}

TEST_P(StagingTest, ReduceScatterSumsUnevenPieces) {
  Group group(num_ranks(), config());
  group.run_ranks([&](StagedCommunicator& rank) {
    for (const size_t count : counts_around(n() * kPerRank / (n() + 1))) {
      const auto own = static_cast<size_t>(rank.rank());
      std::vector<Floats> inputs;
      for (size_t p = 0; p < n(); ++p) {
        inputs.push_back(values_of(rank.rank(), piece_count(p, count)));
      }
      Floats output(piece_count(own, count), -1);
      ASSERT_EQ(run(rank.reduce_scatter(bytes_of(inputs), bytes_of(output), DType::f32,
                                        ReduceOp::sum, {})),
                "ok");
      ASSERT_EQ(output, sums(num_ranks(), output.size()));
    }
  });
}

TEST_P(StagingTest, CollectivesOfUnknownSizesGoAsAWhole) {
  Group group(num_ranks(), config());
  group.run_ranks([&](StagedCommunicator& rank) {
    const auto own = static_cast<size_t>(rank.rank());
    for (const size_t count : counts_around(n() * kPerRank)) {
      const Floats input = values_of(rank.rank(), piece_count(own, count));
      std::vector<Floats> gathered;
      for (size_t p = 0; rank.rank() == 0 && p < n(); ++p) {
        gathered.emplace_back(piece_count(p, count), -1);
      }
      ASSERT_EQ(run(rank.gather(bytes_of(input), bytes_of(gathered), 0, {})), "ok");
      for (size_t p = 0; p < gathered.size(); ++p) {
        ASSERT_EQ(gathered[p], values_of(static_cast<int>(p), gathered[p].size()));
      }
      Floats output(input.size(), -1);
      ASSERT_EQ(run(rank.scatter(bytes_of(gathered), bytes_of(output), 0, {})), "ok");
      ASSERT_EQ(output, input);
    }
  });
}

TEST_P(StagingTest, AllToAllExchangesAndBarrierMeets) {
  Group group(num_ranks(), config());
  group.run_ranks([&](StagedCommunicator& rank) {
    const auto own = static_cast<size_t>(rank.rank());
    for (const size_t count : counts_around(kPerRank)) {
      std::vector<Floats> inputs;
      std::vector<Floats> outputs;
      for (size_t p = 0; p < n(); ++p) {
        inputs.push_back(values_of(rank.rank(), piece_count(own + p, count)));
        outputs.emplace_back(inputs.back().size(), -1);
      }
      ASSERT_EQ(run(rank.all_to_all(bytes_of(inputs), bytes_of(outputs), {})), "ok");
      for (size_t p = 0; p < n(); ++p) {
        ASSERT_EQ(outputs[p], values_of(static_cast<int>(p), outputs[p].size()));
      }
      ASSERT_EQ(run(rank.barrier({})), "ok");
    }
  });
}

TEST_P(StagingTest, MessagesGoRoundAlsoToTheHost) {
  Group group(num_ranks(), config());
  group.run_ranks([&](StagedCommunicator& rank) {
    const int next = (rank.rank() + 1) % num_ranks();
    const int before = (rank.rank() + num_ranks() - 1) % num_ranks();
    for (const size_t count : {size_t{0}, size_t{1}, size_t{70'001}}) {
      // Of one tag: in the order of the calls. The last arrives in memory of the host.
      const Floats input = values_of(rank.rank(), count);
      const Floats other = values_of(rank.rank() + 7, count);
      Floats first(count, -1);
      Floats second(count, -1);
      Floats third(count, -1);
      std::vector<OperationPtr> operations = {
          rank.send(bytes_of(input), next, 5, {}),
          rank.send(bytes_of(other), next, 5, {}),
          rank.send(bytes_of(input), next, 6, {}),
          rank.recv(bytes_of(first), before, 5, {}),
          rank.recv(bytes_of(second), engine::kAnySource, 5, {}),
          group.host(rank.rank()).recv(bytes_of(third), before, 6, {}),
      };
      for (const OperationPtr& operation : operations) ASSERT_EQ(run(operation), "ok");
      ASSERT_EQ(operations[4]->source_rank(), before);
      ASSERT_EQ(first, values_of(before, count));
      ASSERT_EQ(second, values_of(before + 7, count));
      ASSERT_EQ(third, first);
    }
  });
}

#if defined(__SANITIZE_THREAD__)
const auto kRanks = testing::Values(2);  // threads differ in numbers only
#else
const auto kRanks = testing::Values(1, 2, 3);
#endif

INSTANTIATE_TEST_SUITE_P(Ranks, StagingTest,
                         testing::Combine(testing::Values("board", "tcp"), kRanks),
                         [](const auto& info) {
                           return std::string(std::get<0>(info.param)) + "_" +
                                  std::to_string(std::get<1>(info.param));
                         });

// A piece of a stream that waits until it is let go.
class Gate {
 public:
  explicit Gate(ThreadQueue& stream) {
    stream.call([open = open_] { open->wait(false); });
  }
  ~Gate() { open(); }
  void open() {
    open_->store(true);
    open_->notify_all();
  }

 private:
  std::shared_ptr<std::atomic<bool>> open_ = std::make_shared<std::atomic<bool>>(false);
};

TEST(StagingOrder, OperationsFollowTheStreamOfTheirCaller) {
  Group group(2, Config());
  std::atomic<int> num_called{0};
  group.run_ranks([&](StagedCommunicator& rank) {
    ThreadQueue stream;
    ThreadDevice::set_stream(&stream);
    Gate gate(stream);
    Floats data(1000, 0);
    const Floats values = values_of(rank.rank(), data.size());
    stream.call([&] { std::copy(values.begin(), values.end(), data.begin()); });
    const OperationPtr first =
        rank.all_reduce(data.data(), data.size(), DType::f32, ReduceOp::sum, {});
    // On another stream, without anything before it; it comes second nevertheless.
    ThreadDevice::set_stream(nullptr);
    Floats other = values_of(rank.rank() + 1, 10);
    const OperationPtr second =
        rank.all_reduce(other.data(), other.size(), DType::f32, ReduceOp::max, {});
    // The calls have returned on both ranks, although nothing can have begun.
    if (++num_called == 2) num_called.notify_all();
    num_called.wait(1);
    EXPECT_FALSE(first->done());
    EXPECT_FALSE(second->done());
    gate.open();
    ASSERT_EQ(run(first), "ok");
    ASSERT_EQ(run(second), "ok");
    EXPECT_EQ(data, sums(2, data.size()));
    EXPECT_EQ(other, values_of(2, other.size()));
    EXPECT_EQ(first->sequence() + 1, second->sequence());
  });
}

TEST(StagingOrder, MessagesDoNotWaitForCollectives) {
  Group group(2, Config());
  group.run_ranks([&](StagedCommunicator& rank) {
    ThreadQueue stream;
    ThreadDevice::set_stream(&stream);
    Gate gate(stream);
    Floats data = values_of(rank.rank(), 100);
    const OperationPtr sum =
        rank.all_reduce(data.data(), data.size(), DType::f32, ReduceOp::sum, {});
    ThreadDevice::set_stream(nullptr);
    const Floats input = values_of(rank.rank() + 3, 100);
    Floats output(100, -1);
    const OperationPtr sent = rank.send(bytes_of(input), 1 - rank.rank(), 1, {});
    ASSERT_EQ(run(rank.recv(bytes_of(output), 1 - rank.rank(), 1, {})), "ok");
    ASSERT_EQ(run(sent), "ok");
    EXPECT_EQ(output, values_of(4 - rank.rank(), 100));
    EXPECT_FALSE(sum->done());
    gate.open();
    ASSERT_EQ(run(sum), "ok");
    EXPECT_EQ(data, sums(2, 100));
  });
}

TEST(StagingMemory, SlotsOfMessagesAreUsedAgain) {
  Group group(2, Config());
  group.run_ranks([&](StagedCommunicator& rank) {
    Floats data = values_of(rank.rank(), 1000);
    for (int i = 0; i < 20; ++i) {
      const OperationPtr operation = rank.rank() == 0 ? rank.send(bytes_of(data), 1, 1, {})
                                                      : rank.recv(bytes_of(data), 0, 1, {});
      ASSERT_EQ(run(operation), "ok");
    }
    EXPECT_EQ(data, values_of(0, 1000));
  });
  // A slot comes back a moment after its operation has ended: the next may need another one.
  for (int rank : {0, 1}) EXPECT_LE(group.device(rank).num_memories_made(), 2U);
}

TEST(StagingEnd, CloseLetsOperationsEnd) {
  Group group(3, Config());
  std::vector<Floats> data;
  for (int rank = 0; rank < 3; ++rank) data.push_back(values_of(rank, 2'000'003));
  std::vector<OperationPtr> operations(3);
  group.run_ranks([&](StagedCommunicator& rank) {
    const auto own = static_cast<size_t>(rank.rank());
    operations[own] =
        rank.all_reduce(data[own].data(), data[own].size(), DType::f32, ReduceOp::sum, {});
  });
  for (int rank = 0; rank < 3; ++rank) {
    const auto own = static_cast<size_t>(rank);
    ASSERT_TRUE(operations[own]->done());
    EXPECT_EQ(operations[own]->status().to_string(), "ok");
    EXPECT_EQ(data[own], sums(3, data[own].size()));
    EXPECT_EQ(run(group[rank].barrier({})), "aborted: group 'test' was closed");
    EXPECT_EQ(run(group[rank].send(bytes_of(data[own]), 0, 1, {})).substr(0, 8), "aborted:");
  }
}

TEST(StagingFailure, ResultsOfAFailedOperationAreOnes) {
  Group group(2, Config());
  for (int rank : {0, 1}) (void)group[rank].barrier({});  // they have met
  Floats sum = values_of(0, 1'000'000);
  Floats late(1000, 1);
  ThreadQueue stream;
  ThreadDevice::set_stream(&stream);
  const OperationPtr waits =
      group[0].all_reduce(sum.data(), sum.size(), DType::f32, ReduceOp::sum, {});
  Gate gate(stream);
  const OperationPtr not_begun =
      group[0].all_reduce(late.data(), late.size(), DType::f32, ReduceOp::sum, {});
  ThreadDevice::set_stream(nullptr);
  group[1].abort("the test wants it");
  EXPECT_EQ(run(waits).substr(0, 8), "aborted:");
  EXPECT_TRUE(all_ones(sum));
  gate.open();
  EXPECT_EQ(run(not_begun).substr(0, 8), "aborted:");
  EXPECT_TRUE(all_ones(late));
  // Later calls end at once, and leave memory alone.
  Floats untouched = values_of(0, 10);
  EXPECT_EQ(
      run(group[0].all_reduce(untouched.data(), 10, DType::f32, ReduceOp::sum, {})).substr(0, 8),
      "aborted:");
  EXPECT_EQ(untouched, values_of(0, 10));
}

TEST(StagingFailure, AMessageOfAnotherSizeFails) {
  Group group(2, Config());
  group.run_ranks([&](StagedCommunicator& rank) {
    Floats data = values_of(rank.rank(), rank.rank() == 0 ? 10 : 11);
    if (rank.rank() == 0) {
      (void)run(rank.send(bytes_of(data), 1, 1, {}));  // small: it may have left before
    } else {
      EXPECT_EQ(run(rank.recv(bytes_of(data), 0, 1, {})).substr(0, 9), "mismatch:");
      EXPECT_TRUE(all_ones(data));
    }
  });
}

TEST(StagingFailure, PiecesThatDoNotFitAreRefused) {
  Group group(2, Config());
  const Floats data(10, 1);
  const std::string status =
      run(group[0].all_gather(bytes_of(data), {bytes_of(data), Span(), Span()}, {}));
  EXPECT_EQ(status,
            "invalid_argument: all_gather: got 3 tensors on rank 0, expected 2 (one per rank)");
  EXPECT_EQ(
      run(group[0].reduce_scatter({Span(), Span()}, bytes_of(data), DType::f32, ReduceOp::sum, {})),
      "invalid_argument: reduce_scatter: piece 0 has 0 bytes, but rank 0's own tensor has "
      "40");
}

TEST(StagingFailure, ADeviceThatBreaksDownFailsItsOperations) {
  Group group(2, Config());
  group.device(0).fail_copies();
  Floats data = values_of(0, 10);
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(run(group[0].all_reduce(data.data(), 10, DType::f32, ReduceOp::sum, {})),
              "io_error: the device is broken");
  }
  EXPECT_EQ(run(group[0].send(bytes_of(data), 1, 1, {})), "io_error: the device is broken");
}

TEST(StagingFailure, RanksThatDoNotMeetAreToldSo) {
  const auto hosts = make_group(1, Config());
  ThreadDevice device;
  const Status late(StatusCode::timeout, "rank 1 did not come");
  auto made = StagedCommunicator::create(
      device, hosts[0], [&] { return Result<std::shared_ptr<engine::Communicator>>(late); }, 0);
  ASSERT_TRUE(made.ok()) << made.status();
  EXPECT_EQ(run((*made)->barrier({})), "timeout: rank 1 did not come");
  EXPECT_EQ(run((*made)->barrier({})).substr(0, 8), "aborted:");
}

}  // namespace
}  // namespace dmlcomm::tests
