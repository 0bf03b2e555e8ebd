// Every operation of the communicator, over every transport, for many group sizes and counts.

#include <gtest/gtest.h>

#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <future>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/str_cat.h"
#include "engine/communicator.h"
#include "memory/shared_arena.h"
#include "memory/shared_blocks.h"
#include "tests/ranks.h"

namespace dmlcomm::tests {
namespace {

using engine::Communicator;
using engine::OpOptions;

#if defined(__SANITIZE_THREAD__)
// Making and comparing elements is what takes the time there, and no race needs many.
constexpr size_t kLargeCount = 150'000;
const std::vector<size_t> kCounts = {0, 1, 7, 4097, 70'001, kLargeCount};
const std::vector<int> kNumRanks = {2, 3, 8};
#else
constexpr size_t kLargeCount = 600'000;
const std::vector<size_t> kCounts = {0, 1, 2, 3, 7, 64, 1000, 4097, 70'001, kLargeCount};
const std::vector<int> kNumRanks = {1, 2, 3, 4, 5, 8};
#endif

Status run(const engine::OperationPtr& op) { return op->wait(std::chrono::milliseconds(0)); }

// Exactly summable, different for every rank and place.
inline float value_of(int rank, size_t i) { return static_cast<float>((rank + 1) * 3 + i % 101); }

std::vector<float> values_of(int rank, size_t count) {
  std::vector<float> values(count);
  for (size_t i = 0; i < count; ++i) values[i] = value_of(rank, i);
  return values;
}

std::vector<float> sums(int num_ranks, size_t count) {
  std::vector<float> ranks(101, 0);  // with this period values repeat
  for (int rank = 0; rank < num_ranks; ++rank) {
    for (size_t i = 0; i < ranks.size(); ++i) ranks[i] += value_of(rank, i);
  }
  std::vector<float> result(count);
  for (size_t i = 0; i < count; ++i) result[i] = ranks[i % ranks.size()];
  return result;
}

Span bytes_of(const std::vector<float>& v) { return {v.data(), v.size() * sizeof(float)}; }

using Case = std::tuple<size_t, int>;  // transport, ranks

class EngineTest : public testing::TestWithParam<Case> {
 protected:
  const Config& config() const { return all_transports()[std::get<0>(GetParam())].config; }
  int num_ranks() const { return std::get<1>(GetParam()); }
};

TEST_P(EngineTest, AllReduceSumsOverAllRanks) {
  run_ranks(num_ranks(), config(), [&](Communicator& comm) {
    for (bool inline_wait : {true, false}) {
      for (size_t count : kCounts) {
        std::vector<float> data = values_of(comm.rank(), count);
        OpOptions options;
        options.inline_wait = inline_wait;
        ASSERT_EQ(run(comm.all_reduce(data.data(), count, DType::f32, ReduceOp::sum, options))
                      .to_string(),
                  "ok");
        ASSERT_EQ(data, sums(comm.num_ranks(), count)) << count;
      }
    }
  });
}

// Over TCP, in every size.
TEST(EngineChecksums, SumsAreExact) {
  Config config;
  config.transport = TransportChoice::tcp;
  config.checksum = Checksum::crc32c;
  run_ranks(3, config, [&](Communicator& comm) {
    for (size_t count : kCounts) {
      std::vector<float> data = values_of(comm.rank(), count);
      ASSERT_EQ(run(comm.all_reduce(data.data(), count, DType::f32, ReduceOp::sum, {})).to_string(),
                "ok");
      ASSERT_EQ(data, sums(comm.num_ranks(), count)) << count;
    }
  });
}

TEST_P(EngineTest, AverageDividesOnce) {
  run_ranks(num_ranks(), config(), [&](Communicator& comm) {
    for (size_t count : {size_t{5}, size_t{5000}, kLargeCount}) {
      std::vector<double> data(count, (comm.rank() + 1.0) * comm.num_ranks());
      ASSERT_EQ(run(comm.all_reduce(data.data(), count, DType::f64, ReduceOp::avg, {})).to_string(),
                "ok");
      const double expected = comm.num_ranks() * (comm.num_ranks() + 1) / 2.0;
      ASSERT_EQ(data, std::vector<double>(count, expected));
    }
  });
}

TEST_P(EngineTest, ReduceGivesTheRootTheSumAndKeepsInputs) {
  run_ranks(num_ranks(), config(), [&](Communicator& comm) {
    for (size_t count : kCounts) {
      for (int root : {0, comm.num_ranks() - 1}) {
        const std::vector<float> input = values_of(comm.rank(), count);
        std::vector<float> copy = input;
        std::vector<float> output(count, -1);
        ASSERT_EQ(
            run(comm.reduce(copy.data(), output.data(), count, DType::f32, ReduceOp::sum, root, {}))
                .to_string(),
            "ok");
        ASSERT_EQ(copy, input);
        if (comm.rank() == root) {
          ASSERT_EQ(output, sums(comm.num_ranks(), count));
        }
      }
    }
  });
}

TEST_P(EngineTest, BroadcastCopiesTheRoot) {
  run_ranks(num_ranks(), config(), [&](Communicator& comm) {
    for (size_t count : kCounts) {
      for (int root : {0, comm.num_ranks() - 1, comm.num_ranks() / 2}) {
        std::vector<float> data = values_of(comm.rank(), count);
        ASSERT_EQ(run(comm.broadcast(bytes_of(data), root, {})).to_string(), "ok");
        ASSERT_EQ(data, values_of(root, count));
      }
    }
  });
}

// Rank p's piece is uneven on purpose, and empty for some.
size_t piece_count(int rank, size_t count) { return count / (static_cast<size_t>(rank) % 3 + 1); }

TEST_P(EngineTest, AllGatherCollectsUnevenPieces) {
  run_ranks(num_ranks(), config(), [&](Communicator& comm) {
    for (size_t count : kCounts) {
      const std::vector<float> input = values_of(comm.rank(), piece_count(comm.rank(), count));
      std::vector<std::vector<float>> pieces;
      std::vector<Span> outputs;
      for (int p = 0; p < comm.num_ranks(); ++p) pieces.emplace_back(piece_count(p, count), -1.f);
      for (auto& piece : pieces) outputs.push_back(bytes_of(piece));
      ASSERT_EQ(run(comm.all_gather(bytes_of(input), outputs, {})).to_string(), "ok");
      for (int p = 0; p < comm.num_ranks(); ++p) {
        ASSERT_EQ(pieces[p], values_of(p, piece_count(p, count))) << count << " from " << p;
      }
    }
  });
}

TEST_P(EngineTest, GatherAndScatterAreInverse) {
  run_ranks(num_ranks(), config(), [&](Communicator& comm) {
    for (size_t count : kCounts) {
      const int root = comm.num_ranks() / 2;
      const std::vector<float> input = values_of(comm.rank(), count);
      std::vector<std::vector<float>> pieces(comm.rank() == root ? comm.num_ranks() : 0,
                                             std::vector<float>(count, -1));
      std::vector<Span> outputs;
      std::vector<Span> inputs;
      for (auto& piece : pieces) outputs.push_back(bytes_of(piece));
      ASSERT_EQ(run(comm.gather(bytes_of(input), outputs, root, {})).to_string(), "ok");
      for (size_t p = 0; p < pieces.size(); ++p) {
        ASSERT_EQ(pieces[p], values_of(static_cast<int>(p), count));
      }
      for (const auto& piece : pieces) inputs.push_back(bytes_of(piece));
      std::vector<float> back(count, -1);
      ASSERT_EQ(run(comm.scatter(inputs, bytes_of(back), root, {})).to_string(), "ok");
      ASSERT_EQ(back, input);
    }
  });
}

TEST_P(EngineTest, ReduceScatterKeepsInputsAndSumsOwnPiece) {
  run_ranks(num_ranks(), config(), [&](Communicator& comm) {
    for (size_t count : kCounts) {
      std::vector<std::vector<float>> pieces;
      std::vector<Span> inputs;
      for (int p = 0; p < comm.num_ranks(); ++p) {
        pieces.push_back(values_of(comm.rank(), piece_count(p, count)));
      }
      for (auto& piece : pieces) inputs.push_back(bytes_of(std::as_const(piece)));
      std::vector<float> output(piece_count(comm.rank(), count), -1);
      ASSERT_EQ(run(comm.reduce_scatter(inputs, bytes_of(output), DType::f32, ReduceOp::sum, {}))
                    .to_string(),
                "ok");
      ASSERT_EQ(output, sums(comm.num_ranks(), output.size())) << count;
      for (int p = 0; p < comm.num_ranks(); ++p) {
        ASSERT_EQ(pieces[p], values_of(comm.rank(), piece_count(p, count)));
      }
    }
  });
}

TEST_P(EngineTest, AllToAllExchangesUnevenPieces) {
  const auto count_between = [](int from, int to, size_t count) {
    return count / (static_cast<size_t>(from + 2 * to) % 4 + 1);
  };
  run_ranks(num_ranks(), config(), [&](Communicator& comm) {
    for (size_t count : kCounts) {
      std::vector<std::vector<float>> in;
      std::vector<std::vector<float>> out;
      std::vector<Span> inputs;
      std::vector<Span> outputs;
      for (int p = 0; p < comm.num_ranks(); ++p) {
        in.push_back(values_of(comm.rank() * 10 + p, count_between(comm.rank(), p, count)));
        out.emplace_back(count_between(p, comm.rank(), count), -1.f);
      }
      for (int p = 0; p < comm.num_ranks(); ++p) {
        inputs.push_back(bytes_of(std::as_const(in[p])));
        outputs.push_back(bytes_of(out[p]));
      }
      ASSERT_EQ(run(comm.all_to_all(inputs, outputs, {})).to_string(), "ok");
      for (int p = 0; p < comm.num_ranks(); ++p) {
        ASSERT_EQ(out[p], values_of(p * 10 + comm.rank(), out[p].size()));
      }
    }
  });
}

TEST_P(EngineTest, InputsMayBeTheOutputsInPlace) {
  run_ranks(num_ranks(), config(), [&](Communicator& comm) {
    const auto n = static_cast<size_t>(comm.num_ranks());
    const auto own = static_cast<size_t>(comm.rank());
    for (size_t count : {size_t{7}, size_t{30'000}, kLargeCount / 2}) {
      std::vector<float> data = values_of(comm.rank(), count);
      ASSERT_EQ(run(comm.reduce(data.data(), data.data(), count, DType::f32, ReduceOp::sum, 0, {}))
                    .to_string(),
                "ok");
      ASSERT_EQ(data, own == 0 ? sums(comm.num_ranks(), count) : values_of(comm.rank(), count));

      std::vector<std::vector<float>> pieces(n, std::vector<float>(count, -1));
      pieces[own] = values_of(comm.rank(), count);
      std::vector<Span> outputs;
      for (auto& piece : pieces) outputs.push_back(bytes_of(piece));
      ASSERT_EQ(run(comm.all_gather(bytes_of(std::as_const(pieces[own])), outputs, {})).to_string(),
                "ok");
      for (size_t p = 0; p < n; ++p) {
        ASSERT_EQ(pieces[p], values_of(static_cast<int>(p), count));
      }

      for (auto& piece : pieces) piece = values_of(comm.rank(), count);
      std::vector<Span> inputs;
      for (auto& piece : pieces) inputs.push_back(bytes_of(std::as_const(piece)));
      ASSERT_EQ(
          run(comm.reduce_scatter(inputs, bytes_of(pieces[own]), DType::f32, ReduceOp::sum, {}))
              .to_string(),
          "ok");
      ASSERT_EQ(pieces[own], sums(comm.num_ranks(), count));
    }
  });
}

TEST_P(EngineTest, PiecesOfOtherSizesWithTheSameSumAreNoticed) {
  if (num_ranks() == 1) GTEST_SKIP() << "needs a peer";
  run_ranks(num_ranks(), config(), [&](Communicator& comm) {
    const auto n = static_cast<size_t>(comm.num_ranks());
    // All are connected: a rank that connects after the others have closed finds nobody.
    std::vector<float> from(n);
    std::vector<decltype(comm.barrier({}))> messages;
    for (int peer = 0; peer < comm.num_ranks(); ++peer) {
      if (peer == comm.rank()) continue;
      Span place{&from[static_cast<size_t>(peer)], sizeof(float)};
      messages.push_back(comm.recv(place, peer, 1, {}));
      messages.push_back(comm.send(place, peer, 1, {}));
    }
    Status status;
    for (const auto& message : messages) {
      if (status.ok()) status = run(message);
    }

    std::vector<std::vector<float>> pieces(n, std::vector<float>(5000));
    if (comm.rank() == 0) {
      pieces[0].resize(6000);
      pieces[1].resize(4000);
    }
    const std::vector<float> input(pieces[static_cast<size_t>(comm.rank())].size(), 1.f);
    std::vector<Span> outputs;
    for (auto& piece : pieces) outputs.push_back(bytes_of(piece));
    // A rank that is a step behind hears of it in the step before.
    if (status.ok()) status = run(comm.all_gather(bytes_of(input), outputs, {}));
    ASSERT_EQ(status.code(), StatusCode::mismatch) << status;
  });
}

// The others get its reason, although it uses its memory for something else at once; and what they
// were told is complete is complete.
TEST_P(EngineTest, AbortInTheMiddleGivesTheReasonToAll) {
  if (num_ranks() == 1) GTEST_SKIP() << "needs a peer";
  constexpr size_t kCount = 2 * kLargeCount;
  run_ranks(num_ranks(), config(), [&](Communicator& comm) {
    const bool aborts = comm.rank() == comm.num_ranks() - 1;
    for (int i = 0; i < 1000; ++i) {
      std::vector<float> data = values_of(comm.rank(), kCount);
      auto operation = comm.all_reduce(data.data(), kCount, DType::f32, ReduceOp::sum, {});
      if (aborts && i == 3) {
        comm.abort("enough");
        data.assign(kCount, 1e30f);
        return;
      }
      const Status status = run(operation);
      if (!status.ok()) {
        ASSERT_EQ(status.code(), StatusCode::aborted) << status;
        ASSERT_NE(status.message().find("enough"), std::string::npos) << status;
        return;
      }
      ASSERT_EQ(data, sums(comm.num_ranks(), kCount));
    }
    FAIL() << "the abort was never noticed";
  });
}

TEST_P(EngineTest, ManyOperationsInFlightCompleteInAnyWaitingOrder) {
  run_ranks(num_ranks(), config(), [&](Communicator& comm) {
    std::vector<std::vector<float>> buffers;
    std::vector<engine::OperationPtr> operations;
    for (size_t i = 0; i < 60; ++i)
      buffers.push_back(values_of(comm.rank(), i * i * kLargeCount / 15'000));
    for (auto& b : buffers) {
      operations.push_back(comm.all_reduce(b.data(), b.size(), DType::f32, ReduceOp::sum, {}));
    }
    operations.push_back(comm.barrier({}));
    for (size_t i = operations.size(); i-- > 0;) ASSERT_EQ(run(operations[i]).to_string(), "ok");
    for (auto& b : buffers) ASSERT_EQ(b, sums(comm.num_ranks(), b.size()));
  });
}

TEST_P(EngineTest, OperationsOnTheSameMemoryKeepTheirOrder) {
  run_ranks(num_ranks(), config(), [&](Communicator& comm) {
    for (size_t count : {size_t{1}, size_t{5000}, kLargeCount}) {
      std::vector<float> data(count, 1);
      std::vector<float> copies(count * static_cast<size_t>(comm.num_ranks()));
      std::vector<Span> outputs;
      for (int rank = 0; rank < comm.num_ranks(); ++rank) {
        outputs.push_back({&copies[static_cast<size_t>(rank) * count], count * sizeof(float)});
      }
      std::vector<engine::OperationPtr> operations;
      for (int i = 0; i < 3; ++i) {
        operations.push_back(comm.all_reduce(data.data(), count, DType::f32, ReduceOp::sum, {}));
      }
      operations.push_back(comm.all_gather(bytes_of(std::as_const(data)), outputs, {}));
      operations.push_back(comm.all_reduce(data.data(), count, DType::f32, ReduceOp::max, {}));
      for (auto& operation : operations) ASSERT_EQ(run(operation).to_string(), "ok");
      const auto sum = static_cast<float>(std::pow(comm.num_ranks(), 3));
      ASSERT_EQ(data, std::vector<float>(count, sum));
      ASSERT_EQ(copies, std::vector<float>(copies.size(), sum));
    }
  });
}

TEST_P(EngineTest, NumbersOfCollectivesMayExceed32Bits) {
  constexpr uint64_t kFirst = (uint64_t{1} << 32) - 5;
  const auto body = [&](Communicator& comm) {
    std::vector<std::vector<float>> buffers;
    std::vector<engine::OperationPtr> operations;
    for (size_t i = 0; i < 12; ++i) {
      buffers.push_back(values_of(comm.rank(), i % 3 == 0 ? kLargeCount : 10));
    }
    for (auto& b : buffers) {
      operations.push_back(comm.all_reduce(b.data(), b.size(), DType::f32, ReduceOp::sum, {}));
    }
    for (auto& operation : operations) ASSERT_EQ(run(operation).to_string(), "ok");
    for (auto& b : buffers) ASSERT_EQ(b, sums(comm.num_ranks(), b.size()));
    ASSERT_EQ(comm.sequence(), kFirst + 11);
  };
  run_ranks(num_ranks(), config(), body, 60, kFirst);
}

TEST_P(EngineTest, MessagesAreReceivedInAnyOrder) {
  if (num_ranks() == 1) GTEST_SKIP() << "needs a peer";
  run_ranks(num_ranks(), config(), [&](Communicator& comm) {
    const int next = (comm.rank() + 1) % comm.num_ranks();
    const int previous = (comm.rank() + comm.num_ranks() - 1) % comm.num_ranks();
    constexpr uint32_t kNum = 300;
    constexpr size_t kCount = 16 * 1024;  // the messages together exceed what a peer buffers
    const std::vector<float> out = values_of(comm.rank(), kCount + kNum);
    std::vector<engine::OperationPtr> operations;
    for (uint32_t tag = 0; tag < kNum; ++tag) {
      operations.push_back(comm.send({&out[tag], kCount * sizeof(float)}, next, tag, {}));
    }
    const std::vector<float> expected = values_of(previous, kCount + kNum);
    std::vector<float> in(kCount);
    for (uint32_t tag = kNum; tag-- > 0;) {
      ASSERT_EQ(run(comm.recv(bytes_of(in), previous, tag, {})).to_string(), "ok");
      ASSERT_TRUE(std::equal(in.begin(), in.end(), expected.begin() + tag)) << tag;
    }
    for (auto& operation : operations) ASSERT_EQ(run(operation).to_string(), "ok");
  });
}

TEST_P(EngineTest, MessagesOfOneTagKeepTheirOrder) {
  if (num_ranks() == 1) GTEST_SKIP() << "needs a peer";
  run_ranks(num_ranks(), config(), [&](Communicator& comm) {
    const int next = (comm.rank() + 1) % comm.num_ranks();
    const int previous = (comm.rank() + comm.num_ranks() - 1) % comm.num_ranks();
    std::vector<std::vector<float>> out;
    std::vector<std::vector<float>> in;
    std::vector<engine::OperationPtr> operations;
    for (size_t i = 0; i < kCounts.size(); ++i) {
      out.push_back(values_of(comm.rank() + static_cast<int>(i), kCounts[i]));
      in.emplace_back(kCounts[i], -1.f);
    }
    for (auto& b : out) operations.push_back(comm.send(bytes_of(std::as_const(b)), next, 7, {}));
    // A message of another tag overtakes what is not received yet.
    std::vector<float> other(10, static_cast<float>(comm.rank()));
    operations.push_back(comm.send(bytes_of(std::as_const(other)), next, 8, {}));
    std::vector<float> other_in(10);
    ASSERT_EQ(run(comm.recv(bytes_of(other_in), previous, 8, {})).to_string(), "ok");
    ASSERT_EQ(other_in, std::vector<float>(10, static_cast<float>(previous)));
    for (auto& b : in) operations.push_back(comm.recv(bytes_of(b), previous, 7, {}));
    for (auto& operation : operations) ASSERT_EQ(run(operation).to_string(), "ok");
    for (size_t i = 0; i < in.size(); ++i) {
      ASSERT_EQ(in[i], values_of(previous + static_cast<int>(i), kCounts[i]));
    }
  });
}

TEST_P(EngineTest, ReceiveFromAnySourceNamesTheSource) {
  if (num_ranks() == 1) GTEST_SKIP() << "needs a peer";
  run_ranks(num_ranks(), config(), [&](Communicator& comm) {
    for (size_t count : {3ul, 100'000ul}) {
      const auto tag = static_cast<uint32_t>(count);
      if (comm.rank() != 0) {
        std::vector<float> data = values_of(comm.rank(), count);
        ASSERT_EQ(run(comm.send(bytes_of(std::as_const(data)), 0, tag, {})).to_string(), "ok");
        continue;
      }
      std::vector<bool> seen(comm.num_ranks(), false);
      for (int i = 1; i < comm.num_ranks(); ++i) {
        std::vector<float> data(count);
        auto operation = comm.recv(bytes_of(data), engine::kAnySource, tag, {});
        ASSERT_EQ(run(operation).to_string(), "ok");
        ASSERT_EQ(data, values_of(operation->source_rank(), count));
        seen[operation->source_rank()] = true;
      }
      ASSERT_EQ(std::count(seen.begin(), seen.end(), true), comm.num_ranks() - 1);
    }
    ASSERT_EQ(run(comm.barrier({})).to_string(), "ok");
  });
}

// Whoever waits drives, and sleeps with the progress lock until something comes.
TEST_P(EngineTest, CountersAreReadWhileAnotherThreadWaits) {
  run_ranks(num_ranks(), config(), [&](Communicator& comm) {
    const int next = (comm.rank() + 1) % comm.num_ranks();
    std::vector<float> in(1);
    const auto receive = comm.recv(bytes_of(in), engine::kAnySource, 7, {});
    std::thread waiter([&] { (void)run(receive); });
    for (int i = 0; i < 100; ++i) (void)comm.rails();
    const std::vector<float> out = values_of(0, 1);
    EXPECT_EQ(run(comm.send(bytes_of(out), next, 7, {})).to_string(), "ok");
    waiter.join();
    EXPECT_EQ(in, out);
    EXPECT_EQ(run(comm.barrier({})).to_string(), "ok");
  });
}

// Memory as large tensors have it.
template <typename T>
struct BlockAllocator {
  using value_type = T;
  BlockAllocator() = default;
  template <typename Other>
  BlockAllocator(const BlockAllocator<Other>&) {}
  T* allocate(size_t count) {
    void* const block = SharedBlocks::instance().allocate(count * sizeof(T));
    EXPECT_NE(block, nullptr);
    return static_cast<T*>(block);
  }
  void deallocate(T* block, size_t) {
    if (SharedBlocks::instance().remove(block) == SharedBlocks::Removed::ordinary) free(block);
  }
  bool operator==(const BlockAllocator&) const { return true; }
};
using Blocks = std::vector<float, BlockAllocator<float>>;

class EngineSharedBlocksTest : public testing::TestWithParam<int> {
 protected:
  static constexpr size_t kCount = 400'001;
  void SetUp() override {
    SharedArena* const arena = SharedArena::make();
    if (arena == nullptr) GTEST_SKIP() << "this kernel gives no arena";
    SharedBlocks::instance().enable(arena, true);
  }
  static bool is_shared(const Blocks& data) {
    return SharedBlocks::instance().is_shared(data.data(), data.size() * sizeof(float));
  }
  static void fill(Blocks& data, int rank) {
    for (size_t i = 0; i < data.size(); ++i) data[i] = value_of(rank, i);
  }
};

TEST_P(EngineSharedBlocksTest, OperationsGoThroughTheMapping) {
  run_ranks(GetParam(), Config(), [](Communicator& comm) {
    const std::vector<float> all = sums(comm.num_ranks(), kCount);
    const int last = comm.num_ranks() - 1;
    Blocks data(kCount);
    for (int i = 0; i < 4; ++i) {
      fill(data, comm.rank());
      const auto operation = comm.all_reduce(data.data(), kCount, DType::f32, ReduceOp::sum, {});
      ASSERT_EQ(run(operation).to_string(), "ok");
      ASSERT_TRUE(std::equal(data.begin(), data.end(), all.begin()));
      ASSERT_EQ(is_shared(data), i > 0);
      fill(data, comm.rank());
      ASSERT_EQ(run(comm.broadcast({data.data(), kCount * sizeof(float)}, last, {})).to_string(),
                "ok");
      const std::vector<float> sent = values_of(last, kCount);
      ASSERT_TRUE(std::equal(data.begin(), data.end(), sent.begin()));
    }
  });
}

TEST_P(EngineSharedBlocksTest, SharedAndOtherTensorsMeet) {
  constexpr size_t kSmallCount = 20'001;
  run_ranks(GetParam(), Config(), [](Communicator& comm) {
    const std::vector<float> all = sums(comm.num_ranks(), kSmallCount);
    Blocks block(kSmallCount);
    std::vector<float> other(kSmallCount);
    for (int i = 0; i < 2 * comm.num_ranks(); ++i) {
      const bool is_block = i % comm.num_ranks() != comm.rank();
      float* const data = is_block ? block.data() : other.data();
      std::ranges::copy(values_of(comm.rank(), kSmallCount), data);
      const auto operation = comm.all_reduce(data, kSmallCount, DType::f32, ReduceOp::sum, {});
      ASSERT_EQ(run(operation).to_string(), "ok");
      ASSERT_TRUE(std::equal(all.begin(), all.end(), data));
    }
    ASSERT_TRUE(is_shared(block));
  });
}

TEST_P(EngineSharedBlocksTest, AnAbortGivesTheReasonToAll) {
  run_ranks(GetParam(), Config(), [](Communicator& comm) {
    const std::vector<float> all = sums(comm.num_ranks(), kCount);
    Blocks data(kCount);
    for (int i = 0; i < 1000; ++i) {
      fill(data, comm.rank());
      const auto operation = comm.all_reduce(data.data(), kCount, DType::f32, ReduceOp::sum, {});
      if (comm.rank() == 0 && i == 5) {
        comm.abort("enough");
        std::fill(data.begin(), data.end(), 1e30f);
        return;
      }
      const Status status = run(operation);
      if (!status.ok()) {
        ASSERT_EQ(status.code(), StatusCode::aborted) << status;
        return;
      }
      ASSERT_TRUE(std::equal(data.begin(), data.end(), all.begin()));
    }
    FAIL() << "the abort was never noticed";
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, EngineSharedBlocksTest, testing::Values(2, 3, 4));

// Whether a thread of this process sleeps in the kernel.
bool sleeps(pid_t thread) {
  std::ifstream file(str_cat("/proc/self/task/", thread, "/stat"));
  std::string text;
  std::getline(file, text);
  const size_t name_end = text.rfind(')');
  return name_end != std::string::npos && text.substr(name_end + 1, 2) == " S";
}

// Two operations end together. While the first one's callback runs, a thread that waits for the
// second has nothing to drive and falls asleep; it hears of the end, not of the next tick.
TEST(EngineWaitTest, WhoDrivesWhileAnotherReportsIsWoken) {
  int64_t waited_ns = 0;
  for (int i = 0; i < 8; ++i) {
    const auto group = make_group(2, Config());
    float value = 0;
    const Span memory{&value, sizeof(value)};
    const auto first = group[0]->recv(memory, 1, 1, {});
    const auto second = group[0]->recv(memory, 1, 2, {});
    std::promise<void> reports;
    std::atomic<pid_t> waiter{0};
    std::atomic<int64_t> reported_ns{0};
    first->on_done([&](const Status&) {
      reports.set_value();
      const Deadline deadline = Deadline::after_s(10);
      while ((waiter.load() == 0 || !sleeps(waiter.load())) && !deadline.expired()) {
        std::this_thread::yield();
      }
      reported_ns = now_ns();
    });
    std::thread thread([&] {
      reports.get_future().wait();
      waiter = static_cast<pid_t>(syscall(SYS_gettid));
      EXPECT_EQ(run(second).code(), StatusCode::aborted);
      waited_ns += now_ns() - reported_ns;
    });
    group[0]->abort("enough");
    thread.join();
  }
  // Without being woken it sleeps a quarter of a second each time.
  EXPECT_LT(waited_ns, 8 * 100 * kNsPerMs);
}

// Four sums of two ranks, of which the last one is urgent.
class UrgentLast {
 public:
  static constexpr size_t kCalls = 4;

  explicit UrgentLast(const Config& config) : group_(make_group(2, config)) {}

  std::vector<engine::OperationPtr> call_all(int rank) {
    std::vector<engine::OperationPtr> calls;
    for (size_t i = 0; i < kCalls; ++i) {
      std::vector<float>& values = data_[static_cast<size_t>(rank)][i];
      values = values_of(rank, kCount);
      OpOptions options;
      options.ticket = i + 1 == kCalls ? 0 : kDefaultTicket;
      calls.push_back(group_[static_cast<size_t>(rank)]->all_reduce(
          values.data(), kCount, DType::f32, ReduceOp::sum, options));
    }
    return calls;
  }

  // How many end before the urgent one on rank 0, which begins the first when both have called all.
  size_t num_before_urgent() {
    std::promise<void> all_called, all_ended;
    std::vector<size_t> ended;
    const auto gate = group_[0]->barrier({});
    gate->on_done([&](const Status&) { all_called.get_future().wait(); });
    const auto peers_gate = group_[1]->barrier({});
    const auto peers_calls = call_all(1);
    // Behind them: then they have been taken.
    char sent = 1, received = 0;
    const auto message = group_[1]->recv({&received, 1}, 1, 7, {});
    EXPECT_TRUE(run(group_[1]->send({&sent, 1}, 1, 7, {})).ok());
    const auto calls = call_all(0);
    for (size_t i = 0; i < kCalls; ++i) {
      calls[i]->on_done([&, i](const Status& status) {
        EXPECT_TRUE(status.ok()) << status;
        ended.push_back(i);
        if (ended.size() == kCalls) all_ended.set_value();
      });
    }
    all_called.set_value();
    all_ended.get_future().wait();
    for (const auto& call : peers_calls) EXPECT_TRUE(run(call).ok());
    EXPECT_TRUE(run(message).ok() && run(peers_gate).ok());
    for (const auto& of_rank : data_) {
      for (const auto& values : of_rank) EXPECT_EQ(values, sums(2, kCount));
    }
    const auto urgent = std::find(ended.begin(), ended.end(), kCalls - 1);
    return static_cast<size_t>(urgent - ended.begin());
  }

 private:
  static constexpr size_t kCount = 5000;

  std::vector<std::shared_ptr<Communicator>> group_;
  std::vector<float> data_[2][kCalls];
};

// But for one choice in 16, which is the oldest.
TEST(EngineTicketTest, InsideAHostTheUrgentOneOfSeveralGoesFirst) {
  for (const auto& transport : all_transports()) {
    if (transport.name == "tcp") continue;
    UrgentLast sums(transport.config);
    sums.num_before_urgent();  // by then both know that there are tickets
    constexpr size_t kRounds = 8, kChoicesPerRound = 1 + UrgentLast::kCalls;
    size_t num_late = 0;
    for (size_t round = 0; round < kRounds; ++round) {
      const size_t num_before = sums.num_before_urgent();
      EXPECT_LE(num_before, 1u) << transport.name;
      num_late += num_before > 0 ? 1 : 0;
    }
    EXPECT_LE(num_late, 1 + kRounds * kChoicesPerRound / 16) << transport.name;
  }
}

// For this thread and those it starts: one rank does several things before the other sees any.
class OnOneCore {
 public:
  OnOneCore() {
    sched_getaffinity(0, sizeof(before_), &before_);
    int first = 0;
    while (!CPU_ISSET(first, &before_)) ++first;
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(first, &one);
    sched_setaffinity(0, sizeof(one), &one);
  }
  ~OnOneCore() { sched_setaffinity(0, sizeof(before_), &before_); }
  OnOneCore(const OnOneCore&) = delete;
  OnOneCore& operator=(const OnOneCore&) = delete;

 private:
  cpu_set_t before_;
};

// Rank 0 comes last to a barrier and ends: rank 1 has what it needs, and its barrier is complete.
// `before` and `after` are what rank 1 does around it.
template <typename Before, typename After, typename End>
void barrier_outlives_rank_0(Before before, After after, End end_of_rank_0) {
  const OnOneCore one_core;
  for (const auto& transport : all_transports()) {
    Config sleeping = transport.config;
    sleeping.spin_us = 0;
    for (int i = 0; i < 20; ++i) {
      run_ranks(2, sleeping, [&](Communicator& comm) {
        char token = 0;
        ASSERT_TRUE(run(comm.barrier({})).ok());
        if (comm.rank() == 1) {
          before(comm);
          const auto barrier = comm.barrier({});
          ASSERT_TRUE(run(comm.send({&token, sizeof(token)}, 0, 7, {})).ok());
          EXPECT_EQ(run(barrier).to_string(), "ok") << transport.name;
          after();
        } else {
          ASSERT_TRUE(run(comm.recv({&token, sizeof(token)}, 1, 7, {})).ok());
          ASSERT_TRUE(run(comm.barrier({})).ok());
          end_of_rank_0(comm);
        }
      });
    }
  }
}

TEST(EngineAbortTest, DoesNotOvertakeWhatIsComplete) {
  barrier_outlives_rank_0([](Communicator&) {}, [] {},
                          [](Communicator& comm) { comm.abort("enough"); });
}

// Rank 0 leaves in good order. What waits for it fails, what it completed does not.
TEST(EngineAbortTest, GoodbyeDoesNotOvertakeWhatIsComplete) {
  char never = 0;
  engine::OperationPtr message;
  barrier_outlives_rank_0(
      [&](Communicator& comm) { message = comm.recv({&never, sizeof(never)}, 0, 8, {}); },
      [&] { EXPECT_EQ(run(message).code(), StatusCode::peer_lost); }, [](Communicator&) {});
}

// Whichever of the two ways through memory is named, it is taken where it can be, and sums right.
TEST(EngineChoiceTest, TakesTheNamedWayThroughMemory) {
  for (const char* name : {"slots", "peer_memory"}) {
    Config config;
    config.algorithm = name;
    for (int num_ranks : {2, 3}) {
      run_ranks(num_ranks, config, [&](Communicator& comm) {
        for (size_t count : kCounts) {
          std::vector<float> data = values_of(comm.rank(), count);
          const auto sum = comm.all_reduce(data.data(), count, DType::f32, ReduceOp::sum, {});
          ASSERT_EQ(run(sum).to_string(), "ok");
          ASSERT_EQ(data, sums(comm.num_ranks(), count)) << name << " " << count;
          data = values_of(comm.rank(), count);
          ASSERT_EQ(run(comm.broadcast(bytes_of(data), 1, {})).to_string(), "ok");
          ASSERT_EQ(data, values_of(1, count)) << name << " " << count;
        }
        // What the ranks disagree about has the name of what they did.
        std::vector<float> data(comm.rank() == 0 ? 64 : 65);
        const Status status =
            run(comm.all_reduce(data.data(), data.size(), DType::f32, ReduceOp::sum, {}));
        EXPECT_EQ(status.code(), StatusCode::mismatch);
        EXPECT_NE(status.message().find(name), std::string::npos) << status.message();
      });
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Transports, EngineTest,
                         testing::Combine(testing::Range(size_t{0}, all_transports().size()),
                                          testing::ValuesIn(kNumRanks)),
                         [](const testing::TestParamInfo<Case>& info) {
                           return all_transports()[std::get<0>(info.param)].name + "_" +
                                  std::to_string(std::get<1>(info.param));
                         });

}  // namespace
}  // namespace dmlcomm::tests
