// How threads wait for operations: they leave the cores to others.

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <chrono>
#include <ctime>
#include <future>
#include <thread>

#include "base/clock.h"
#include "engine/communicator.h"
#include "tests/ranks.h"

namespace dmlcomm::engine {
namespace {

using tests::make_group;

constexpr int kWaits = 200;
constexpr std::chrono::milliseconds kShort{1};

// How often this thread has slept so far; yielding does not count. And for how long it has run.
struct Use {
  long num_sleeps;
  int64_t cpu_ns;
};

Use use_of_this_thread() {
  rusage usage{};
  timespec cpu{};
  EXPECT_EQ(getrusage(RUSAGE_THREAD, &usage), 0);
  EXPECT_EQ(clock_gettime(CLOCK_THREAD_CPUTIME_ID, &cpu), 0);
  return {usage.ru_nvcsw, cpu.tv_sec * kNsPerS + cpu.tv_nsec};
}

// Threads that poll for longer than each of the short waits lasts.
class WaitingTest : public testing::Test {
 protected:
  WaitingTest() {
    Config config;
    config.spin_us = 2000;
    group_ = make_group(2, config);
  }

  // Waits often for what does not come. Most of these waits shall end asleep, and most of the time.
  void wait_in_vain(const OperationPtr& op) {
    const Use before = use_of_this_thread();
    const int64_t begin_ns = now_ns();
    for (int i = 0; i < kWaits; ++i) EXPECT_EQ(op->wait(kShort).code(), StatusCode::timeout);
    const Use after = use_of_this_thread();
    EXPECT_GT(after.num_sleeps - before.num_sleeps, kWaits / 2);
    EXPECT_LT(after.cpu_ns - before.cpu_ns, (now_ns() - begin_ns) / 2);
  }

  std::vector<std::shared_ptr<Communicator>> group_;
  char byte_ = 0;
};

TEST_F(WaitingTest, WhoDrivesInManyShortWaitsSleeps) {
  // The progress thread is busy: so this one drives.
  std::promise<void> begins, ends;
  const auto first = group_[0]->recv({&byte_, 1}, 1, 1, {});
  first->on_done([&](const Status&) {
    begins.set_value();
    ends.get_future().wait();
  });
  char sent = 1;
  const auto sending = group_[1]->send({&sent, 1}, 0, 1, {});
  begins.get_future().wait();
  const auto op = group_[0]->recv({&byte_, 1}, 1, 2, {});
  wait_in_vain(op);
  ends.set_value();
  EXPECT_TRUE(sending->wait(std::chrono::milliseconds(0)).ok());
}

TEST_F(WaitingTest, WhoLetsAnotherDriveInManyShortWaitsSleeps) {
  const auto last = group_[0]->recv({&byte_, 1}, 1, 1, {});
  std::thread driver([&] { EXPECT_TRUE(last->wait(std::chrono::milliseconds(0)).ok()); });
  wait_in_vain(group_[0]->recv({&byte_, 1}, 1, 2, {}));
  char sent = 1;
  EXPECT_TRUE(group_[1]->send({&sent, 1}, 0, 1, {})->wait(std::chrono::milliseconds(0)).ok());
  driver.join();
}

}  // namespace
}  // namespace dmlcomm::engine
