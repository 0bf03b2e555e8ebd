// Inside a host: which collective is next, and that an urgent one passes a large one that runs.

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <future>
#include <string>
#include <vector>

#include "base/ticket.h"
#include "engine/communicator.h"
#include "engine/local/agenda.h"
#include "tests/ranks.h"

namespace dmlcomm::engine {
namespace {

TEST(AgendaTest, TheSmallestTicketIsNextAndOfEqualOnesTheFirst) {
  EXPECT_EQ(most_urgent({{4, 128, false}}), 4u);
  EXPECT_EQ(most_urgent({{4, 128, false}, {5, 3, false}, {7, 3, false}}), 5u);
  EXPECT_EQ(most_urgent({{4, 255, false}, {5, 255, false}}), 4u);
}

TEST(AgendaTest, WhatAnOrderedOneWaitsForIsAsUrgentAsThat) {
  EXPECT_EQ(most_urgent({{4, 200, false}, {5, 0, true}, {6, 100, false}}), 4u);
  EXPECT_EQ(most_urgent({{4, 200, false}, {5, 90, true}, {6, 10, false}}), 6u);
  EXPECT_EQ(most_urgent({{4, 200, false}, {5, 150, true}, {6, 10, true}, {7, 5, false}}), 7u);
  EXPECT_EQ(most_urgent({{5, 0, true}, {6, 100, false}}), 5u);  // the oldest
}

TEST(AgendaTest, OneChoiceInSixteenIsTheOldest) {
  for (uint64_t number = 1; number <= 48; ++number) {
    const uint64_t expected = number == 16 || number == 32 || number == 48 ? 4 : 5;
    EXPECT_EQ(choice({{4, 128, false}, {5, 3, false}}, number), expected) << number;
  }
}

constexpr size_t kSmall = 1000, kLarge = 2'000'000;

constexpr std::chrono::seconds kDeadline{30};

Status run(const OperationPtr& op) { return op->wait(kDeadline); }

// A rank of two, and what it sums up: ones.
struct Rank {
  std::shared_ptr<Communicator> group;
  std::vector<float> small = std::vector<float>(kSmall, 1);
  std::vector<float> large = std::vector<float>(kLarge, 1);
  std::string order = "";  // in which they end
  std::promise<void> has_ended{};

  OperationPtr sum(std::vector<float>& values, uint8_t ticket) {
    OpOptions options;
    options.ticket = ticket;
    return group->all_reduce(values.data(), values.size(), DType::f32, ReduceOp::sum, options);
  }
  void sum_small() {
    sum(small, 0)->on_done([this](const Status& status) { note("small", status); });
  }
  void sum_large() {
    sum(large, kDefaultTicket)->on_done([this](const Status& status) { note("large", status); });
  }
  void note(const std::string& which, const Status& status) {
    EXPECT_TRUE(status.ok()) << status;
    order += order.empty() ? which : " " + which;
    if (order.size() > which.size()) has_ended.set_value();
  }
};

bool are_all_two(const std::vector<float>& values) {
  return std::ranges::all_of(values, [](float value) { return value == 2; });
}

TEST(AgendaTest, AnUrgentCollectivePassesALargeOneThatRuns) {
  const auto group = tests::make_group(2, tests::all_transports().front().config);
  Rank first{group[0]}, second{group[1]};
  for (int i = 0; i < 2; ++i) {  // by then both know that there are tickets
    std::vector<float> ones[2] = {{1}, {1}};
    const OperationPtr sums[] = {first.sum(ones[0], 0), second.sum(ones[1], 0)};
    for (const OperationPtr& sum : sums) EXPECT_TRUE(run(sum).ok());
  }

  // The second rank has called the large one, and then does nothing until it is let go.
  std::promise<void> let_go;
  const OperationPtr gate = group[1]->barrier({});
  gate->on_done([&](const Status&) { let_go.get_future().wait(); });
  second.sum_large();
  char sent = 1, received = 0;
  const OperationPtr message = group[1]->recv({&received, 1}, 0, 7, {});
  EXPECT_TRUE(run(group[0]->send({&sent, 1}, 1, 7, {})).ok());
  EXPECT_TRUE(run(message).ok());  // both have been taken
  EXPECT_TRUE(run(group[0]->barrier({})).ok());
  first.sum_large();
  EXPECT_TRUE(run(group[0]->send({&sent, 1}, 1, 8, {})).ok());  // with it the large one starts

  first.sum_small();
  second.sum_small();
  let_go.set_value();
  for (Rank* rank : {&first, &second}) {
    ASSERT_EQ(rank->has_ended.get_future().wait_for(kDeadline), std::future_status::ready);
    EXPECT_EQ(rank->order, "small large");
    EXPECT_TRUE(are_all_two(rank->small) && are_all_two(rank->large));
  }
}

}  // namespace
}  // namespace dmlcomm::engine
