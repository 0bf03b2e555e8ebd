// How threads wait for operations: they leave the cores to others.

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <chrono>
#include <future>
#include <thread>

#include "engine/communicator.h"
#include "tests/ranks.h"

namespace dmlcomm::engine {
namespace {

using tests::make_group;

constexpr int kWaits = 200;
constexpr std::chrono::milliseconds kShort{1};

// How often this thread has slept so far. Yielding does not count.
long num_sleeps() {
  rusage usage{};
  EXPECT_EQ(getrusage(RUSAGE_THREAD, &usage), 0);
  return usage.ru_nvcsw;
}

// Threads that poll for longer than each of the short waits lasts.
class WaitingTest : public testing::Test {
 protected:
  WaitingTest() {
    Config config;
    config.spin_us = 2000;
    group_ = make_group(2, config);
  }

  // Waits often for what does not come; most of these waits shall end asleep.
  void wait_in_vain(const OperationPtr& op) {
    const long before = num_sleeps();
    for (int i = 0; i < kWaits; ++i) EXPECT_EQ(op->wait(kShort).code(), StatusCode::timeout);
    EXPECT_GT(num_sleeps() - before, kWaits / 2);
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
