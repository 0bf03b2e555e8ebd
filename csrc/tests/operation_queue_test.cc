// Which operations run at once, and what early frames say of operations.

#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "engine/collective_history.h"
#include "engine/operation_queue.h"
#include "engine/rail_sharing.h"
#include "transport/link.h"

namespace dmlcomm::engine {
namespace {

class NoDriver final : public Driver {
 public:
  bool drive_until(OpState& op, Deadline) override { return op.done(); }
};

class IdleRunner final : public Runner {
 public:
  IdleRunner() : Runner({}) {}
  Status start() override { return Status(); }
  Status advance(bool*) override { return Status(); }
  bool complete() const override { return false; }
  bool waits_for(int) const override { return false; }
};

class OperationQueueTest : public testing::Test {
 protected:
  std::shared_ptr<OpState> all_reduce(float* data, size_t count, uint8_t ticket = kDefaultTicket) {
    OpRequest request;
    request.ticket = ticket;
    request.shape.kind = schedule::OpKind::all_reduce;
    request.shape.counts = {count};
    request.output = BufferView(Span{data, count * sizeof(float)});
    return queue_.submit(&driver_, std::move(request), Deadline());
  }
  // Plans up to `window` places behind the oldest, and starts what may start; their sequence
  // numbers.
  std::vector<uint64_t> start(uint64_t window = 4) {
    queue_.take_submitted();
    while (OperationQueue::Running* next = queue_.next_to_plan()) {
      if (queue_.distance(*next) >= window) break;
      queue_.planned(*next);
    }
    std::vector<uint64_t> started;
    while (OperationQueue::Running* running = queue_.next_to_start()) {
      running->runner = std::make_unique<IdleRunner>();
      started.push_back(running->op->sequence());
      running_.push_back(running);
    }
    return started;
  }
  void end(size_t started) {
    queue_.end(*running_[started], Status());
    queue_.sweep();
  }
  void end_collective(uint64_t sequence) {
    queue_.end(*queue_.find_if([&](const auto& r) { return r.sequence == sequence; }), Status());
    queue_.sweep();
  }

  using Numbers = std::vector<uint64_t>;
  NoDriver driver_;
  OperationQueue queue_{1};
  std::vector<OperationQueue::Running*> running_;
  std::vector<float> memory_ = std::vector<float>(100);
};

TEST_F(OperationQueueTest, CollectivesRunThatAreInsideTheWindowOfTheOldest) {
  for (size_t i = 0; i < 6; ++i) all_reduce(&memory_[i], 1);
  EXPECT_EQ(start(), (Numbers{1, 2, 3, 4}));
  EXPECT_TRUE(queue_.runs_several());
  end(2);
  EXPECT_EQ(queue_.oldest_collective(), 1u);
  EXPECT_EQ(start(), (Numbers{}));
  end(0);
  EXPECT_EQ(queue_.oldest_collective(), 2u);
  EXPECT_EQ(start(), (Numbers{5}));
  end(1);
  EXPECT_EQ(queue_.oldest_collective(), 4u);
  EXPECT_EQ(start(), (Numbers{6}));
}

// Large operations leave room for small ones, and for a while after the last of these.
class RailSharingTest : public OperationQueueTest {
 protected:
  static constexpr size_t kLargeCount = transport::kEagerBytes / sizeof(float) + 1;

  double share_after_ms(int64_t ms) {
    now_ns_ += ms * kNsPerMs;
    start();
    sharing_.update();
    return share_;
  }

  double share_ = 1;
  int64_t now_ns_ = kNsPerS;
  RailSharing sharing_{queue_, [this](double share) { share_ = share; },
                       [this] { return now_ns_; }};
  std::vector<float> large_ = std::vector<float>(2 * kLargeCount);
};

TEST_F(RailSharingTest, LargeOperationsLeaveRoomWhileSmallOnesRunBesideThemAndALittleLonger) {
  all_reduce(&large_[0], kLargeCount);
  EXPECT_EQ(share_after_ms(0), 1);
  all_reduce(&memory_[0], 1);
  EXPECT_LT(share_after_ms(0), 1);
  EXPECT_LT(share_after_ms(1000), 1);
  end_collective(2);
  EXPECT_LT(share_after_ms(10), 1);
  all_reduce(&memory_[0], 1);
  EXPECT_LT(share_after_ms(10), 1);
  end_collective(3);
  EXPECT_LT(share_after_ms(25), 1);
  EXPECT_EQ(share_after_ms(25), 1);
}

TEST_F(RailSharingTest, WithoutALargeOperationNothingLeavesRoom) {
  all_reduce(&memory_[0], 1);
  EXPECT_EQ(share_after_ms(0), 1);
  all_reduce(&large_[0], kLargeCount);
  EXPECT_LT(share_after_ms(0), 1);
  end_collective(2);
  EXPECT_EQ(share_after_ms(0), 1);
}

TEST_F(RailSharingTest, OnceTicketsAreGivenNothingLeavesRoom) {
  all_reduce(&large_[0], kLargeCount);
  all_reduce(&memory_[0], 1);
  EXPECT_LT(share_after_ms(0), 1);
  all_reduce(&memory_[1], 1, kDefaultTicket - 1);
  EXPECT_EQ(share_after_ms(0), 1);
  end_collective(3);
  EXPECT_EQ(share_after_ms(0), 1);
}

TEST_F(OperationQueueTest, MemoryInCommonWaitsAndNothingElseDoes) {
  all_reduce(&memory_[0], 10);
  all_reduce(&memory_[9], 10);
  all_reduce(&memory_[50], 10);
  EXPECT_EQ(start(), (Numbers{1, 3}));
  end(0);
  EXPECT_EQ(start(), (Numbers{2}));
}

TEST_F(OperationQueueTest, LargeTensorsRunOneAfterTheOther) {
  constexpr size_t kCount = 30u << 20;
  float* const nowhere = nullptr;
  for (size_t i = 0; i < 3; ++i) all_reduce(nowhere + i * kCount, kCount);
  EXPECT_EQ(start(), (Numbers{1}));
  end(0);
  EXPECT_EQ(start(), (Numbers{2}));
}

TEST_F(OperationQueueTest, MessagesStartWhileCollectivesMayNot) {
  all_reduce(&memory_[0], 1);
  OpRequest request;
  request.shape.kind = schedule::OpKind::recv;
  queue_.submit(&driver_, std::move(request), Deadline());
  queue_.take_submitted();
  OperationQueue::Running* const running = queue_.next_to_start();
  ASSERT_NE(running, nullptr);
  EXPECT_TRUE(running->op->request().is_point_to_point());
  EXPECT_EQ(queue_.next_to_start(), nullptr);
  EXPECT_EQ(start(), (Numbers{1}));
}

TEST_F(OperationQueueTest, TheSmallestTicketStartsNextHoweverFarBehind) {
  for (size_t i = 0; i < 12; ++i) all_reduce(&memory_[i], 1);
  EXPECT_EQ(start(64), (Numbers{1, 2, 3, 4, 5, 6, 7, 8}));
  EXPECT_FALSE(queue_.has_tickets());
  all_reduce(&memory_[20], 1, 7);
  all_reduce(&memory_[21], 1, 9);
  all_reduce(&memory_[22], 1, 8);
  all_reduce(&memory_[23], 1, 200);
  EXPECT_TRUE(queue_.take_submitted());
  EXPECT_TRUE(queue_.has_tickets());
  EXPECT_EQ(start(64), (Numbers{13, 15, 14}));
  end_collective(8);
  EXPECT_EQ(start(64), Numbers{});  // of ticket 128 or less, 10 run
  for (uint64_t sequence : {5, 6, 7}) end_collective(sequence);
  EXPECT_EQ(start(64), (Numbers{9}));
  for (uint64_t sequence : {1, 2, 3, 4, 9}) end_collective(sequence);
  EXPECT_EQ(start(64), (Numbers{10, 11, 12, 16}));
}

TEST_F(OperationQueueTest, TheOldestRunsWhateverItsTicketIs) {
  all_reduce(&memory_[0], 1, 255);
  for (size_t i = 1; i < 10; ++i) all_reduce(&memory_[i], 1, 0);
  EXPECT_EQ(start(64), (Numbers{2, 3, 4, 5, 6, 7, 8, 9, 1}));
}

TEST_F(OperationQueueTest, WhatAnUrgentOneWaitsForTakesOverItsTicket) {
  all_reduce(&memory_[0], 1);
  const auto middle = all_reduce(&memory_[10], 10, 200);
  const auto before = all_reduce(&memory_[19], 2, 200);
  const auto other = all_reduce(&memory_[40], 1, 200);
  all_reduce(&memory_[20], 10, 3);
  queue_.take_submitted();
  EXPECT_EQ(middle->ticket(), 3);
  EXPECT_EQ(before->ticket(), 3);
  EXPECT_EQ(other->ticket(), 200);
  EXPECT_EQ(start(64), (Numbers{2, 1, 4}));
  end_collective(2);
  EXPECT_EQ(start(64), (Numbers{3}));
  end_collective(3);
  EXPECT_EQ(start(64), (Numbers{5}));
}

TEST_F(OperationQueueTest, WhatRunsKeepsItsTicket) {
  const auto running = all_reduce(&memory_[0], 1);
  start();
  all_reduce(&memory_[0], 1, 3);
  queue_.take_submitted();
  EXPECT_EQ(running->ticket(), 128);
}

TEST_F(OperationQueueTest, AnUrgentOneStartsAtOnceHoweverLarge) {
  constexpr size_t kCount = 40u << 20;
  float* const nowhere = nullptr;
  for (size_t i = 0; i < 4; ++i) all_reduce(&memory_[i], 1);
  all_reduce(nowhere + 1000, kCount, 0);
  EXPECT_EQ(start(64), (Numbers{5, 1}));
}

TEST_F(OperationQueueTest, AnUrgentOneStartsBesideLargeTensors) {
  constexpr size_t kCount = 30u << 20;
  float* const nowhere = nullptr;
  for (size_t i = 0; i < 2; ++i) all_reduce(nowhere + i * kCount, kCount);
  all_reduce(nowhere + 2 * kCount, kCount, 6);
  all_reduce(nowhere + 3 * kCount, kCount, 5);
  EXPECT_EQ(start(64), (Numbers{4, 1}));
  all_reduce(nowhere + 4 * kCount, kCount, 4);
  EXPECT_EQ(start(64), (Numbers{5}));
  // 256 MiB beside the oldest are the limit, whatever the ticket is.
  all_reduce(nowhere + 5 * kCount, kCount, 3);
  EXPECT_EQ(start(64), Numbers{});
  all_reduce(&memory_[0], 1, 2);
  EXPECT_EQ(start(64), (Numbers{7}));
}

TEST_F(OperationQueueTest, WhatComesAfterAFailureEndsWithTheFirst) {
  const auto before = all_reduce(&memory_[0], 1);
  EXPECT_TRUE(queue_.set_error(Status(StatusCode::peer_lost, "gone")));
  EXPECT_FALSE(queue_.set_error(Status(StatusCode::aborted, "late")));
  const auto after = all_reduce(&memory_[1], 1);
  ASSERT_TRUE(after->done());
  EXPECT_EQ(after->status().code(), StatusCode::peer_lost);
  EXPECT_EQ(start(), Numbers{});
  std::mutex mutex;
  std::unique_lock lock(mutex);
  queue_.report_ended(lock);
  ASSERT_TRUE(before->done());
  EXPECT_EQ(before->status().message(), "gone");
  EXPECT_FALSE(queue_.has_pending());
}

TEST(CollectiveHistoryTest, RanksThatDisagreeAreFoundFromBothSides) {
  transport::OpInfo ours;
  transport::OpInfo theirs;
  theirs.count = 7;
  CollectiveHistory history;
  EXPECT_FALSE(history.hear(2, 5, theirs));  // not begun here
  EXPECT_FALSE(history.hear(2, 5, theirs));
  EXPECT_FALSE(history.begin(4, ours, 4));
  const auto found = history.begin(5, ours, 4);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->sequence, 5u);
  EXPECT_EQ(found->peer, 2);
  EXPECT_EQ(found->theirs.count, 7u);
  EXPECT_TRUE(history.hear(1, 4, theirs));
  EXPECT_FALSE(history.hear(1, 4, ours));
}

TEST(CollectiveHistoryTest, WhatBeginsAfterALaterOneIsComparedToo) {
  transport::OpInfo ours;
  transport::OpInfo theirs;
  theirs.count = 7;
  CollectiveHistory history;
  history.hear(2, 5, theirs);
  EXPECT_FALSE(history.begin(9, ours, 5));
  EXPECT_TRUE(history.begin(5, ours, 5));
}

}  // namespace
}  // namespace dmlcomm::engine
