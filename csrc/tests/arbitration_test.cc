// Jobs that share the NICs of a host: who is held back, and by how many bytes.
#include "proxy/arbitration.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "base/clock.h"
#include "proxy/shares.h"

namespace dmlcomm::proxy {
namespace {

using transport::Direction;
using transport::JobSeat;
using transport::NicCredit;

constexpr size_t kFrame = 16 * 1024;
constexpr double kNicBytes = 100e3;  // in a millisecond
constexpr double kNicRate = kNicBytes * 8 * 1000;

std::vector<double> shares(const std::vector<unsigned>& priorities, bool is_strict, double floor) {
  return shares_of(priorities, {is_strict, floor});
}

TEST(SharesTest, JobsBehindTheFirstPriorityShareTheFloor) {
  EXPECT_EQ(shares({}, true, 0.1), (std::vector<double>{}));
  EXPECT_EQ(shares({7}, true, 0.1), (std::vector<double>{1}));
  EXPECT_EQ(shares({3, 3}, true, 0.1), (std::vector<double>{0.5, 0.5}));
  EXPECT_EQ(shares({4, 0, 7}, true, 0.2), (std::vector<double>{0.1, 0.8, 0.1}));
  EXPECT_EQ(shares({1, 0}, true, 0), (std::vector<double>{0, 1}));
}

TEST(SharesTest, WeightsAreTwiceThoseOfTheNextPriority) {
  EXPECT_EQ(shares({2, 3, 3}, false, 0.1), (std::vector<double>{0.5, 0.25, 0.25}));
  EXPECT_EQ(shares({0, 7}, false, 0.25), (std::vector<double>{0.75, 0.25}));
}

// A process of a job, which sends over one NIC in frames, or reads.
class Process {
 public:
  Process(Arbitration& arbitration, const std::string& job, unsigned priority,
          Direction direction = Direction::out)
      : seat_(*JobSeat::create()), credit_(seat_, "eth0", direction), arbitration_(arbitration) {
    // The arbiter maps the page by itself.
    number_ = arbitration.add(job, priority, *JobSeat::open(seat_->descriptor()));
  }

  // Sends up to `most` bytes; returns how many.
  uint64_t send(double most, int64_t now_ns) {
    uint64_t sent = 0;
    while (static_cast<double>(sent) + kFrame <= most && credit_.has_credit(now_ns)) {
      credit_.take(kFrame);
      credit_.count(kFrame);
      sent += kFrame;
    }
    sent_bytes += sent;
    return sent;
  }
  void leave() { arbitration_.remove(number_); }
  NicCredit& credit() { return credit_; }
  std::string reason() const { return seat_->reason(); }
  uint32_t class_mark() const { return seat_->page().class_mark.load(); }

  uint64_t sent_bytes = 0;

 private:
  std::shared_ptr<JobSeat> seat_;
  NicCredit credit_;
  Arbitration& arbitration_;
  uint64_t number_ = 0;
};

class ArbitrationTest : public testing::Test {
 protected:
  // The NIC carries what the first ones leave, in the order of `processes`; each would send
  // `wanted` of the NIC.
  void run(int rounds, const std::vector<Process*>& processes, std::vector<double> wanted) {
    std::vector<double> backlog(processes.size());
    for (int round = 0; round < rounds; ++round) {
      now_ns_ += kNsPerMs;
      arbitration_.round(now_ns_);
      room_ = std::min(room_ + kNicBytes, 2 * kNicBytes);
      for (size_t i = 0; i < processes.size(); ++i) {
        backlog[i] = std::min(backlog[i] + wanted[i] * kNicBytes, 10 * kNicBytes);
        const double sent =
            static_cast<double>(processes[i]->send(std::min(room_, backlog[i]), now_ns_));
        room_ -= sent;
        backlog[i] -= sent;
      }
    }
  }

  double part(const Process& process, const std::vector<Process*>& all) {
    double sum = 0;
    for (const Process* one : all) sum += static_cast<double>(one->sent_bytes);
    return static_cast<double>(process.sent_bytes) / sum;
  }

  Arbitration arbitration_{SharePolicy{}};
  int64_t now_ns_ = kNsPerS;
  double room_ = 0;
};

TEST_F(ArbitrationTest, AJobAloneIsNotHeldBack) {
  Process job(arbitration_, "a", 7), same(arbitration_, "a", 7);
  run(20, {&job, &same}, {0.5, 1});
  EXPECT_FALSE(job.credit().is_shared());
  EXPECT_GT(part(same, {&job, &same}), 0.4);
}

TEST_F(ArbitrationTest, JobsBehindHaveTheirPartOfTheBytes) {
  // They come first to the NIC, and would take all.
  Process late(arbitration_, "late", 7), later(arbitration_, "later", 7),
      first(arbitration_, "first", 0);
  const std::vector<Process*> all{&late, &later, &first};
  first.credit().measured(kNicRate);
  run(5, all, {0, 0, 1});
  for (Process* process : all) process->sent_bytes = 0;
  run(4000, all, {1, 1, 1});
  EXPECT_TRUE(late.credit().is_limited());
  EXPECT_FALSE(first.credit().is_limited());
  EXPECT_TRUE(first.credit().is_shared());
  EXPECT_NEAR(part(late, all), 0.025, 0.002);
  EXPECT_NEAR(part(later, all), 0.025, 0.002);
}

// The part is one of bytes: it takes as many rounds as it takes.
TEST_F(ArbitrationTest, TheFloorCountsBytesAndNotTime) {
  Process late(arbitration_, "late", 5), first(arbitration_, "first", 4);
  const std::vector<Process*> all{&late, &first};
  uint64_t allowed = 0;
  for (int step = 0; step < 2000; ++step) {
    // Rounds of any length; without a measured rate there is something for their time, too.
    const int64_t passed_ns = step % 7 == 0 ? 9 * kNsPerMs : kNsPerMs / 10;
    now_ns_ += passed_ns;
    allowed += first.send(kFrame * 4, now_ns_) / 19;
    allowed += static_cast<uint64_t>(Arbitration::kUnknownBytesPerSecond * passed_ns / kNsPerS);
    arbitration_.round(now_ns_);
    late.send(10 * kNicBytes, now_ns_);
    if (step == 0) late.sent_bytes = 0;  // before anything was known
    ASSERT_LE(late.sent_bytes, allowed + 2 * kFrame);
  }
  EXPECT_GE(late.sent_bytes + 10 * kFrame, allowed);
}

TEST_F(ArbitrationTest, WhatTheFirstJobLeavesIsUsed) {
  Process late(arbitration_, "late", 5), first(arbitration_, "first", 0);
  const std::vector<Process*> all{&first, &late};
  first.credit().measured(kNicRate);
  run(1000, all, {0.2, 1});
  EXPECT_NEAR(part(first, all), 0.2 / Arbitration::kUsable, 0.03);
}

TEST_F(ArbitrationTest, ReadingIsArbitratedAsSendingIs) {
  Process late(arbitration_, "late", 7, Direction::in),
      first(arbitration_, "first", 0, Direction::in);
  Process sender(arbitration_, "late", 7), other(arbitration_, "other", 7);
  const std::vector<Process*> all{&late, &first};
  first.credit().measured(kNicRate);
  run(5, all, {0, 1});
  late.sent_bytes = first.sent_bytes = 0;
  run(4000, all, {1, 1});
  EXPECT_TRUE(late.credit().is_limited());
  EXPECT_NEAR(part(late, all), 0.05, 0.002);
  EXPECT_FALSE(sender.credit().is_limited()) << "nobody sends before it";
  const Arbitration::JobStatus status = arbitration_.status().front();
  EXPECT_EQ(status.sent_bytes, 0u);
  EXPECT_GT(status.received_bytes, 0u);
  EXPECT_EQ(status.nics.front().in.share, 0.95);
}

TEST_F(ArbitrationTest, ReceiptsHoldNobodyBack) {
  Process late(arbitration_, "late", 7, Direction::in);
  Process first(arbitration_, "first", 0, Direction::in);
  for (int round = 0; round < 20; ++round) {
    now_ns_ += kNsPerMs;
    first.credit().count(1000);
    arbitration_.round(now_ns_);
    EXPECT_FALSE(late.credit().is_limited());
  }
  first.credit().count(kFrame);
  arbitration_.round(now_ns_ + kNsPerMs);
  EXPECT_TRUE(late.credit().is_limited());
}

// The first of those behind is held up elsewhere, and takes a little only.
TEST_F(ArbitrationTest, WhatAJobBehindDoesNotTakeIsForTheNext) {
  Process blocked(arbitration_, "blocked", 5), next(arbitration_, "next", 6),
      first(arbitration_, "first", 0);
  const std::vector<Process*> all{&first, &blocked, &next};
  first.credit().measured(kNicRate);
  run(5, all, {0.2, 1, 1});
  for (Process* process : all) process->sent_bytes = 0;
  run(4000, all, {0.2, 0.2, 1});
  EXPECT_NEAR(part(blocked, all), 0.2 / Arbitration::kUsable, 0.03);
  EXPECT_NEAR(part(next, all), 1 - 0.4 / Arbitration::kUsable, 0.05);
}

TEST_F(ArbitrationTest, AJobThatComputesHoldsNobodyBack) {
  Process late(arbitration_, "late", 5), first(arbitration_, "first", 0);
  run(5, {&first, &late}, {1, 1});
  EXPECT_TRUE(late.credit().is_limited());
  run(Arbitration::kHoldNs / kNsPerMs + 1, {&first, &late}, {0, 1});
  EXPECT_FALSE(late.credit().is_limited());
  EXPECT_TRUE(late.credit().is_shared());
}

TEST_F(ArbitrationTest, WhatAKernelStillSendsHoldsOthersBack) {
  Process late(arbitration_, "late", 5), first(arbitration_, "first", 0);
  first.credit().begin(kFrame);
  run(5 * Arbitration::kHoldNs / kNsPerMs, {&first, &late}, {0, 1});
  EXPECT_TRUE(late.credit().is_limited());
  first.credit().end(kFrame);
  run(Arbitration::kHoldNs / kNsPerMs + 1, {&first, &late}, {0, 1});
  EXPECT_FALSE(late.credit().is_limited());
}

// The first one does not wait for these bytes and for a part that comes on top of them.
TEST_F(ArbitrationTest, WhatAJobHasUnderWayIsOfItsPart) {
  Process late(arbitration_, "late", 5), first(arbitration_, "first", 0);
  const std::vector<Process*> all{&first, &late};
  first.credit().measured(kNicRate);
  const auto rounds_until_it_sends = [&](uint64_t under_way) {
    run(Arbitration::kHoldNs / kNsPerMs + 1, all, {0, 1});  // nobody is behind
    late.credit().begin(under_way);
    int rounds = 0;
    do {
      late.sent_bytes = 0;
      run(1, all, {1, 1});
    } while (++rounds < 3000 && (rounds < 3 || late.sent_bytes == 0));
    late.credit().end(under_way);
    return rounds;
  };
  run(5, all, {1, 1});
  EXPECT_LT(rounds_until_it_sends(0), 10);
  const auto own = static_cast<uint64_t>(0.05 * kNicBytes);  // in a round
  EXPECT_NEAR(rounds_until_it_sends(100 * own), 100, 10);
  EXPECT_NEAR(rounds_until_it_sends(100'000 * own), 1000, 100) << "it waits for a second at most";
}

TEST_F(ArbitrationTest, AnArbiterThatIsGoneHoldsNobodyBack) {
  Process late(arbitration_, "late", 5), first(arbitration_, "first", 0);
  run(5, {&first, &late}, {1, 1});
  late.send(kFrame, now_ns_);
  EXPECT_FALSE(late.credit().has_credit(now_ns_));
  EXPECT_FALSE(late.credit().has_credit(now_ns_ + JobSeat::kBeatNs - 1));
  EXPECT_TRUE(late.credit().has_credit(now_ns_ + JobSeat::kBeatNs));
}

TEST_F(ArbitrationTest, AJobThatLeavesHoldsNobodyBack) {
  Process late(arbitration_, "late", 5), first(arbitration_, "first", 0);
  run(5, {&first, &late}, {1, 1});
  arbitration_.round(now_ns_);
  const uint64_t sent = first.sent_bytes;
  EXPECT_EQ(arbitration_.status().front().sent_bytes, sent);
  first.leave();
  run(1, {&late}, {1});
  EXPECT_FALSE(late.credit().is_shared());
  ASSERT_EQ(arbitration_.status().size(), 1u);
  EXPECT_EQ(arbitration_.status().front().name, "late");
}

TEST_F(ArbitrationTest, AJobHearsWhyItHasLostItsPlace) {
  Process job(arbitration_, "a", 5), other(arbitration_, "a", 4);
  arbitration_.drop("a", 5, "for another one");
  EXPECT_EQ(job.reason(), "for another one");
  EXPECT_EQ(other.reason(), "");
}

TEST_F(ArbitrationTest, NamesOfStrangersAreText) {
  const auto seat = *JobSeat::create();
  ASSERT_NE(seat->nic("eth\n0"), nullptr);
  arbitration_.add("a", 0, *JobSeat::open(seat->descriptor()));
  arbitration_.round(now_ns_);
  EXPECT_TRUE(arbitration_.status().front().nics.empty());
}

TEST_F(ArbitrationTest, NamesThatNoNicHasAreNotArbitrated) {
  Arbitration of_others(SharePolicy{}, [](const std::string& name) { return name != "eth0"; });
  Process job(of_others, "a", 5), other(of_others, "b", 0);
  of_others.round(now_ns_);
  EXPECT_TRUE(of_others.status().front().nics.empty());
  EXPECT_FALSE(job.credit().is_shared());
}

TEST(ClassesTest, JobsHaveTheMarkOfTheirPriority) {
  Arbitration arbitration(SharePolicy{.num_classes = 2}), without(SharePolicy{});
  EXPECT_EQ(Process(arbitration, "a", 3).class_mark(), 1u + 1);
  EXPECT_EQ(Process(arbitration, "b", 4).class_mark(), 1u + 0);
  EXPECT_EQ(Process(without, "c", 4).class_mark(), 0u);
}

TEST(JobSeatTest, WhatIsNoSeatIsRefused) {
  EXPECT_FALSE(JobSeat::open(0).ok());
  const auto seat = *JobSeat::create();
  EXPECT_EQ(seat->nic("an interface's name"), nullptr);
  EXPECT_EQ(seat->nic("eth0"), seat->nic("eth0"));
}

}  // namespace
}  // namespace dmlcomm::proxy
