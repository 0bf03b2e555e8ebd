// A link of several rails, over pipes in memory: striping, and lanes that die at any byte.

#include <gtest/gtest.h>

#include <algorithm>
#include <list>
#include <memory>
#include <random>
#include <vector>

#include "base/clock.h"
#include "base/str_cat.h"
#include "base/ticket.h"
#include "tests/link_pair.h"

namespace dmlcomm::transport {
namespace {

using tests::begin_to_send;
using tests::MemoryChannel;
using tests::Message;
using tests::Pair;
using tests::random_bytes;

TEST(RailsTest, AStripedMessageUsesEveryRail) {
  std::mt19937 random(1);
  Pair pair(2, 10'000);
  Message message(collective_tag(1, 0, 0), random_bytes(500'000, random));
  pair.b.recv(message.in);
  pair.b.open(1, {});
  pair.a.send(message.out);
  pair.settle();
  EXPECT_EQ(message.got, message.data);
  EXPECT_FALSE(pair.a.has_outstanding());
  for (size_t rail : {0u, 1u}) {
    EXPECT_GT(pair.counters_a[rail].bytes_sent, 200'000u) << rail;
    EXPECT_EQ(pair.counters_a[rail].bytes_sent, pair.counters_b[rail].bytes_received);
  }
}

// Meters that know these rates.
std::vector<RailMeter> meters_at(const std::vector<int64_t>& bytes_per_second) {
  std::vector<RailMeter> meters(bytes_per_second.size());
  Channel::Flow flow;
  flow.confirmed_bytes = 100'000;
  for (size_t rail = 0; rail < meters.size(); ++rail) {
    meters[rail].add({}, flow, flow.confirmed_bytes);
    const int64_t active_ns = 100'000 * kNsPerS / bytes_per_second[rail];
    meters[rail].end_period(0, active_ns, 0, RailMeter::Traffic::telling);
  }
  return meters;
}

// One part shows whether the rail is still slow. More would hold the message up.
TEST(RailsTest, ARailThatIsMuchSlowerTakesOneSmallPart) {
  std::mt19937 random(1);
  std::vector<RailMeter> meters = meters_at({1'000'000'000, 1000});
  Pair pair(2, 1u << 20, 1, kAnyRail, meters.data());
  Message message(collective_tag(1, 0, 0), random_bytes(2'000'000, random));
  begin_to_send(pair, message);
  pair.settle();
  EXPECT_EQ(message.got, message.data);
  EXPECT_GT(pair.counters_a[1].bytes_sent, 16'000u);
  EXPECT_LT(pair.counters_a[1].bytes_sent, 20'000u);
}

// The arbiter of a host takes a job with large frames on their way for one that sends.
TEST(RailsTest, FramesThatNobodyConfirmsEndWithTheirLink) {
  std::mt19937 random(1);
  const std::shared_ptr<JobSeat> seat = JobSeat::create().value();
  const SeatFlow& flow = seat->nic("eth0")->out;
  std::vector<RailMeter> meters(1);
  meters[0].arbitrate({seat, "eth0"}, {});
  Message message(collective_tag(1, 0, 0), random_bytes(2'000'000, random));
  {
    Pair pair(1, 1u << 20, 1, kAnyRail, meters.data(), 0, true);
    begin_to_send(pair, message);
    pair.a.progress();
    EXPECT_GE(flow.under_way_bytes.load(), RailMeter::kLeastFrameBytes);
  }
  EXPECT_EQ(flow.under_way_bytes.load(), 0u);
}

// Another job of the receiver's host goes first.
TEST(RailsTest, LargeMessagesAreReadAsFarAsTheirCreditGoes) {
  constexpr size_t kPart = 64 * 1024;
  std::mt19937 random(1);
  const std::shared_ptr<JobSeat> seat = JobSeat::create().value();
  SeatFlow& flow = seat->nic("eth0")->in;
  seat->page().beat_ns.store(now_ns() + JobSeat::kBeatNs / 2);
  std::vector<RailMeter> meters(1);
  meters[0].arbitrate({}, {seat, "eth0", Direction::in});
  Pair pair(1, 1u << 20, 1, kAnyRail, meters.data(), 0, true);
  Message small(collective_tag(1, 0, 0), random_bytes(kPart, random));
  Message large(collective_tag(1, 0, 1), random_bytes(2'000'000, random));
  for (Message* message : {&small, &large}) pair.a.recv(message->in);
  pair.a.open(1, {});
  pair.settle();
  flow.sharing.store(SeatFlow::behind);
  flow.granted_bytes.store(kPart + 1);
  pair.b.send(small.out);
  pair.b.send(large.out);
  pair.settle();
  EXPECT_EQ(small.got, small.data);
  EXPECT_GT(flow.taken_bytes.load(), kPart);
  EXPECT_LE(flow.taken_bytes.load(), 2 * kPart);
  EXPECT_LE(flow.bytes.load(), 4 * kPart);
  EXPECT_GT(flow.wanted_ns.load(), 0);
  EXPECT_TRUE(meters[0].take_yielding()) << "so that it looks again soon";
  EXPECT_NE(large.got, large.data);
  flow.granted_bytes.store(large.data.size());
  pair.settle();
  EXPECT_EQ(large.got, large.data);
  EXPECT_EQ(flow.taken_bytes.load(), large.data.size());
}

// Sends a message after the lanes' connections have shown these rates (0: not known); the bytes of
// it that each rail has carried.
std::vector<uint64_t> bytes_by_rail(Pair& pair, const std::vector<double>& bytes_per_second) {
  std::mt19937 random(1);
  Message before(collective_tag(1, 0, 0), random_bytes(1'000'000, random));
  before.out.order.ticket = kDefaultTicket;
  begin_to_send(pair, before);
  pair.settle();
  for (size_t rail = 0; rail < bytes_per_second.size(); ++rail) {
    auto* channel = dynamic_cast<MemoryChannel*>(pair.a.channel(rail));
    channel->bytes_per_second = bytes_per_second[rail];
  }
  // Lanes look at the rates of their connections no more than every millisecond.
  for (const int64_t begin = now_ns(); now_ns() - begin <= 2 * kNsPerMs;) {
  }
  std::vector<uint64_t> bytes;
  for (const RailCounters& counters : pair.counters_a) bytes.push_back(counters.bytes_sent);
  Message message(collective_tag(1, 0, 1), random_bytes(2'000'000, random));
  message.out.order.ticket = kDefaultTicket;
  begin_to_send(pair, message);
  pair.settle();
  EXPECT_EQ(message.got, message.data);
  for (size_t rail = 0; rail < bytes.size(); ++rail) {
    bytes[rail] = pair.counters_a[rail].bytes_sent - bytes[rail];
  }
  return bytes;
}

// The first connection has a tenth of its rail, as others use that, too. So has the second one,
// which does not know it.
TEST(RailsTest, TheRateOfAConnectionIsNotComparedWithThatOfARail) {
  std::vector<RailMeter> meters = meters_at({1'000'000'000, 1'000'000'000});
  Pair pair(2, 1u << 20, 1, kAnyRail, meters.data());
  const std::vector<uint64_t> bytes = bytes_by_rail(pair, {100e6, 0});
  EXPECT_GT(bytes[0], 600'000u);
  EXPECT_GT(bytes[1], 600'000u);
}

// A lane for urgent messages has carried nothing, and knows no rate.
TEST(RailsTest, LanesOfOtherClassesDoNotCountForThatComparison) {
  std::vector<RailMeter> meters = meters_at({1'000'000'000, 1'000'000'000});
  Pair pair(2, 1u << 20, 1, kAnyRail, meters.data(), 1);
  for (const size_t lane : {2u, 3u}) pair.connect(lane);
  const std::vector<uint64_t> bytes = bytes_by_rail(pair, {900e6, 100e6});
  EXPECT_GT(bytes[0], 2 * bytes[1]);
}

// The rail is in use while they have no receipt.
TEST(RailsTest, MessagesOfLargeOperationsAreTimed) {
  constexpr size_t kBytes = 40'000;
  std::mt19937 random(1);
  for (const bool tells : {false, true}) {
    std::vector<RailMeter> meters(2);
    Pair pair(2, 1u << 20, 1, kAnyRail, meters.data());
    Message message(collective_tag(1, 0, 0), random_bytes(kBytes, random));
    message.out.tells_rate = tells;
    message.out.rail = 0;
    begin_to_send(pair, message);
    pair.settle();
    EXPECT_EQ(message.got, message.data);
    const int64_t now = now_ns();
    EXPECT_EQ(meters[0].in_use_ns(now) > 0, tells);
    EXPECT_EQ(meters[0].in_use_ns(now + kNsPerS), meters[0].in_use_ns(now)) << "it has not ended";
  }
}

TEST(RailsTest, LargeMessagesLeaveRoomAndSmallOnesPassThem) {
  std::mt19937 random(1);
  std::vector<RailMeter> meters = meters_at({1000, 1000});
  Pair pair(2, 1u << 20, 1, kAnyRail, meters.data());
  for (RailMeter& meter : meters) meter.share(0.5);
  Message large(collective_tag(1, 0, 0), random_bytes(500'000, random));
  begin_to_send(pair, large);
  pair.settle();
  // One small part took the budget of its rail for many seconds.
  for (size_t rail : {0u, 1u}) EXPECT_LT(pair.counters_a[rail].bytes_sent, 20'000u) << rail;
  EXPECT_TRUE(pair.a.has_outstanding());

  std::list<Message> small;
  for (uint32_t step = 0; step < 4; ++step) {
    Message& message = small.emplace_back(collective_tag(2, step, 0), random_bytes(8000, random));
    message.out.order.sequence = 2;
    pair.b.recv(message.in);
    pair.a.send(message.out);
  }
  pair.a.flush_deferred();
  pair.settle();
  for (const Message& message : small) EXPECT_EQ(message.got, message.data);
  // They took both rails.
  for (size_t rail : {0u, 1u}) EXPECT_GT(pair.counters_a[rail].bytes_sent, 2 * 16'000u) << rail;
  EXPECT_NE(large.got, large.data);

  for (RailMeter& meter : meters) meter.share(1);
  pair.settle();
  EXPECT_EQ(large.got, large.data);
  EXPECT_FALSE(pair.a.has_outstanding());
}

TEST(RailsTest, AMessageWhoseRailIsDeadIsStripedOverTheOthers) {
  std::mt19937 random(1);
  Pair pair(3, 10'000);
  pair.a.lose_lane(0, "cut");
  Message message(collective_tag(1, 0, 0), random_bytes(500'000, random));
  message.out.rail = 0;
  begin_to_send(pair, message);
  pair.settle();
  EXPECT_EQ(message.got, message.data);
  EXPECT_LT(pair.counters_a[0].bytes_sent, 1000u);
  for (size_t rail : {1u, 2u}) EXPECT_GT(pair.counters_a[rail].bytes_sent, 200'000u) << rail;
}

// Rail 0 leads to the peer; rail 1 is a detour of two lanes, numbers 1 and 3.
TEST(RailsTest, DetoursCarryWhatMayTakeAnyRailOnlyWhileTheFirstRailIsDead) {
  std::mt19937 random(1);
  Pair pair(2, 10'000, 2, 0);
  pair.connect(3);
  Message before(collective_tag(1, 0, 0), random_bytes(500'000, random));
  begin_to_send(pair, before);
  pair.settle();
  EXPECT_EQ(before.got, before.data);
  EXPECT_GT(pair.counters_a[0].bytes_sent, 500'000u);
  EXPECT_LT(pair.counters_a[1].bytes_sent, 1000u);

  pair.a.lose_lane(0, "cut");
  Message after(collective_tag(1, 0, 1), random_bytes(500'000, random));
  begin_to_send(pair, after);
  pair.settle();
  EXPECT_EQ(after.got, after.data);
  EXPECT_GT(pair.counters_a[1].bytes_sent, 500'000u);
  for (size_t lane : {1u, 3u}) {
    const auto* channel = dynamic_cast<const MemoryChannel*>(pair.a.channel(lane));
    EXPECT_GT(channel->num_writes, 10) << lane;  // of at most 10,000 bytes each
  }

  // Of the lanes of a rail, too, the living carry all.
  pair.a.lose_lane(1, "cut");
  EXPECT_EQ(pair.counters_a[1].lanes_lost, 1u);
  Message last(collective_tag(1, 0, 2), random_bytes(500'000, random));
  begin_to_send(pair, last);
  pair.settle();
  EXPECT_EQ(last.got, last.data);
  EXPECT_GT(pair.counters_a[1].bytes_sent, 1'000'000u);
}

constexpr int64_t kBetweenHeartbeats = 250 * kNsPerMs;

TEST(RailsTest, ALaneThatIsSilentWhileAnotherIsHeardIsGivenUp) {
  std::mt19937 random(1);
  Pair pair(2, 10'000);
  Message message(collective_tag(1, 0, 0), random_bytes(500'000, random));
  begin_to_send(pair, message);
  dynamic_cast<MemoryChannel*>(pair.a.channel(0))->stop();
  pair.settle();
  EXPECT_EQ(pair.notes_b.num_arrived, 0);
  for (int i = 0; i < 100 && pair.notes_a.num_lost == 0; ++i) {
    pair.b.heartbeat();
    pair.settle();
    EXPECT_TRUE(pair.a.take_sign_of_life(kBetweenHeartbeats));
  }
  EXPECT_EQ(pair.notes_a.num_lost, 1);
  EXPECT_EQ(pair.a.channel(0), nullptr);
  pair.settle();
  EXPECT_EQ(message.got, message.data);
}

TEST(RailsTest, APeerThatIsSilentEverywhereKeepsItsLanes) {
  Pair pair(2, 10'000);
  const auto tell = [](Link& from, size_t lane) {
    const HeaderBytes none{};
    const iovec part{const_cast<std::byte*>(none.data()), 1};
    EXPECT_EQ(*from.channel(lane)->write(&part, 1), 1u);
  };
  pair.settle();
  (void)pair.a.take_sign_of_life(0);
  for (int i = 0; i < 100; ++i) EXPECT_FALSE(pair.a.take_sign_of_life(i * kBetweenHeartbeats));
  // It is there again, and its lanes are heard one after the other.
  tell(pair.b, 1);
  (void)pair.a.progress();
  EXPECT_TRUE(pair.a.take_sign_of_life(3600 * kNsPerS));
  EXPECT_EQ(pair.notes_a.num_lost, 0);
}

TEST(RailsTest, MessagesInBothDirectionsAreConfirmedWhenTheyEnd) {
  std::mt19937 random(1);
  Pair pair(2, 1000);
  Message there(collective_tag(1, 0, 0), random_bytes(300'000, random));
  Message back(collective_tag(1, 0, 1), random_bytes(300'000, random));
  pair.b.recv(there.in);
  pair.a.recv(back.in);
  pair.a.open(1, {});
  pair.b.open(1, {});
  pair.a.send(there.out);
  pair.b.send(back.out);
  pair.settle();
  EXPECT_EQ(there.got, there.data);
  EXPECT_EQ(back.got, back.data);
  EXPECT_EQ(pair.notes_a.num_sent, 1);
  EXPECT_EQ(pair.notes_b.num_sent, 1);
}

// Whoever has its message may not look at its links again for a while.
TEST(RailsTest, TheReceiptLeavesWithTheStepThatEndsTheMessage) {
  std::mt19937 random(1);
  Pair pair(2, 1 << 20);
  Message message(collective_tag(1, 0, 0), random_bytes(300'000, random));
  begin_to_send(pair, message);
  while (pair.a.progress()) {
  }
  while (pair.notes_b.num_arrived == 0) ASSERT_TRUE(pair.b.progress());
  while (pair.a.progress()) {
  }
  EXPECT_EQ(pair.notes_a.num_sent, 1);
}

TEST(RailsTest, ReceiptsThatNobodyWaitsForComeLateButCome) {
  std::mt19937 random(1);
  Pair pair(2, 10'000);
  std::list<Message> small;
  for (uint32_t i = 0; i < 10; ++i) {
    Message& message = small.emplace_back(collective_tag(1, 0, i), random_bytes(100, random));
    pair.b.recv(message.in);
    pair.a.send(message.out);
  }
  pair.settle();
  EXPECT_EQ(pair.notes_a.num_sent, 10);  // copied
  EXPECT_EQ(pair.counters_b[0].bytes_sent + pair.counters_b[1].bytes_sent, 0u);
  EXPECT_EQ(pair.a.num_unconfirmed(), 10u);
  pair.b.confirm_soon();
  pair.settle();
  EXPECT_EQ(pair.a.num_unconfirmed(), 0u);
}

// More than is read at a time: an end that was closed in good order takes nothing any more, and all
// that it sent before is there.
TEST(RailsTest, ALaneThatTakesNothingIsReadToItsEnd) {
  std::mt19937 random(1);
  Pair pair(1, 100'000, 1, kAnyRail, nullptr, 0, true);
  constexpr uint32_t kNumMessages = 120;
  std::list<Message> messages;
  for (uint32_t i = 0; i < kNumMessages; ++i) {
    Message& message = messages.emplace_back(point_to_point_tag(i), random_bytes(60'000, random));
    pair.b.recv(message.in);
    pair.a.send(message.out);
  }
  while (pair.a.wants_to_write()) pair.a.progress();
  pair.a.channel()->shut_down();
  static_cast<MemoryChannel*>(pair.b.channel())->fails_to_write = true;
  pair.b.heartbeat();
  while (pair.b.progress()) {
  }
  EXPECT_EQ(pair.notes_b.num_arrived, static_cast<int>(kNumMessages));
  EXPECT_EQ(pair.b.take_lost_lanes(), std::vector<size_t>{0});
  for (const Message& message : messages) EXPECT_EQ(message.got, message.data);
}

TEST(RailsTest, AMessageThatNamesARailTakesIt) {
  std::mt19937 random(1);
  Pair pair(3, 10'000);
  Message message(collective_tag(1, 0, 0), random_bytes(500'000, random));
  message.out.rail = 2;
  pair.b.recv(message.in);
  pair.b.open(1, {});
  pair.a.send(message.out);
  pair.settle();
  EXPECT_EQ(message.got, message.data);
  EXPECT_GT(pair.counters_a[2].bytes_sent, 500'000u);
}

TEST(RailsTest, SmallMessagesKeepTheirBytesWhenOthersGoFirst) {
  std::mt19937 random(1);
  Pair pair(2, 7);
  Message large(collective_tag(1, 0, 0), random_bytes(100'000, random));
  large.out.rail = 0;
  std::list<Message> small;
  begin_to_send(pair, large);
  for (int i = 0; i < 20; ++i) pair.a.progress();  // its first frame is partly written
  for (uint32_t i = 0; i < 30; ++i) {
    Message& message = small.emplace_back(collective_tag(1, 0, 1 + i), random_bytes(8, random));
    message.out.rail = 0;
    message.out.order.step = 100 - i;
    pair.b.recv(message.in);
    pair.a.send(message.out);
  }
  pair.settle();
  EXPECT_EQ(large.got, large.data);
  for (const Message& message : small) EXPECT_EQ(message.got, message.data);
}

TEST(RailsTest, OfLargeMessagesTheSmallestTicketGoesFirst) {
  std::mt19937 random(1);
  Pair pair(2, 2000);
  Message slow(collective_tag(1, 0, 0), random_bytes(3'000'000, random));
  Message urgent(collective_tag(2, 0, 0), random_bytes(300'000, random));
  slow.out.order.ticket = 128;
  urgent.out.order.ticket = 127;
  urgent.out.order.sequence = 1;
  pair.b.recv(urgent.in);
  pair.b.open(2, {});
  begin_to_send(pair, slow);
  for (int i = 0; i < 20; ++i) pair.step();
  pair.a.send(urgent.out);
  while (pair.notes_b.num_arrived == 0) ASSERT_TRUE(pair.step());
  EXPECT_EQ(urgent.got, urgent.data);
  EXPECT_LT(slow.in.arrived, 1'000'000u);
  pair.settle();
  EXPECT_EQ(slow.got, slow.data);
}

TEST(RailsTest, OnePartInSixteenIsTheOldestOperations) {
  std::mt19937 random(1);
  Pair pair(2, 2000);
  Message old(collective_tag(1, 0, 0), random_bytes(4'000'000, random));
  Message urgent(collective_tag(2, 0, 0), random_bytes(30'000'000, random));
  old.out.order.ticket = 255;
  old.out.age = 1;
  urgent.out.age = 2;
  pair.b.recv(urgent.in);
  pair.b.open(2, {});
  begin_to_send(pair, old);
  pair.a.send(urgent.out);
  while (pair.notes_b.num_arrived == 0) ASSERT_TRUE(pair.step());
  EXPECT_EQ(urgent.got, urgent.data);
  EXPECT_GT(old.in.arrived, urgent.data.size() / 18);
  EXPECT_LT(old.in.arrived, urgent.data.size() / 12);
}

TEST(RailsTest, ALargeMessagePassesSmallOnesThatAreLessUrgent) {
  std::mt19937 random(1);
  Pair pair(2, 2000);
  Message urgent(collective_tag(2, 0, 0), random_bytes(300'000, random));
  std::list<Message> small;
  pair.b.recv(urgent.in);
  pair.b.open(2, {});
  pair.settle();
  for (uint32_t i = 0; i < 200; ++i) {
    Message& message = small.emplace_back(collective_tag(1, 0, i), random_bytes(10'000, random));
    message.out.order.ticket = 1;
    pair.b.recv(message.in);
    pair.a.send(message.out);
  }
  pair.a.send(urgent.out);
  while (urgent.in.arrived < urgent.data.size()) ASSERT_TRUE(pair.step());
  EXPECT_LT(pair.notes_b.num_arrived, 100);
  pair.settle();
  for (const Message& message : small) EXPECT_EQ(message.got, message.data);
}

TEST(RailsTest, GoodbyeWaitsForWhatOtherLanesBring) {
  std::mt19937 random(1);
  Pair pair(2, 100);
  Message message(collective_tag(1, 0, 0), random_bytes(20'000, random));
  message.out.rail = 1;
  pair.b.recv(message.in);
  pair.a.send(message.out);
  while (pair.a.wants_to_write()) pair.a.progress();
  pair.a.send_goodbye();
  pair.settle();
  EXPECT_EQ(message.got, message.data);
  EXPECT_TRUE(pair.notes_b.goodbye);
  EXPECT_EQ(pair.notes_b.num_lost, 0);
}

TEST(RailsTest, APeerThatHasOurGoodbyeMayCloseWithoutItsOwn) {
  Pair pair(2, 2 * kHeaderBytes);
  pair.a.send_goodbye();
  while (pair.b.progress()) {
  }
  ASSERT_TRUE(pair.notes_b.goodbye);
  for (size_t lane = 0; lane < 2; ++lane) pair.b.channel(lane)->shut_down();
  while (pair.a.progress()) {
  }
  EXPECT_EQ(pair.notes_a.num_lost, 0);
  EXPECT_NE(pair.a.state(), Link::State::failed);
}

TEST(RailsTest, TheReasonOfAnEndIsReadBeforeAnyLaneSeemsLost) {
  Pair pair(3, 100);
  pair.a.lose_lane(0, "test");  // what is in order goes over the next lane from now on
  pair.settle();
  pair.connect(0);
  pair.settle();
  ASSERT_EQ(pair.notes_b.num_lost, 1);
  pair.a.end(Status(StatusCode::aborted, "enough"));
  while (pair.a.flush_last_words()) {
  }
  pair.settle();
  EXPECT_EQ(pair.notes_b.failure.message(), "enough");
  EXPECT_TRUE(pair.notes_b.failure_reported);
  EXPECT_EQ(pair.notes_b.num_lost, 1);
}

TEST(RailsTest, WhatArrivesOfAnEndedLinkIsWhatWasSent) {
  std::mt19937 random(1);
  Pair pair(2, 1000);
  Message message(collective_tag(1, 0, 0), random_bytes(300'000, random));
  const std::vector<std::byte> data = message.data;
  constexpr auto kUntouched = std::byte{0xa5};
  message.got.assign(data.size(), kUntouched);
  begin_to_send(pair, message);
  for (int i = 0; i < 30; ++i) pair.step();  // both lanes are inside a frame
  pair.a.end(Status(StatusCode::aborted, "enough"));
  std::fill(message.data.begin(), message.data.end(), std::byte{0});
  while (pair.a.flush_last_words()) pair.b.progress();
  pair.settle();
  EXPECT_EQ(pair.notes_b.failure.message(), "enough");
  EXPECT_EQ(pair.notes_b.num_lost, 0);
  size_t num_wrong = 0;
  for (size_t i = 0; i < data.size(); ++i) {
    num_wrong += message.got[i] != data[i] && message.got[i] != kUntouched ? 1 : 0;
  }
  EXPECT_EQ(num_wrong, 0u);
}

TEST(RailsTest, ABorrowedMessageIsSentOnlyWhenThePeerHasIt) {
  std::mt19937 random(1);
  Pair pair(2, 1 << 20);
  Message message(collective_tag(1, 0, 0), random_bytes(100'000, random));
  begin_to_send(pair, message);
  for (int i = 0; i < 10; ++i) pair.a.progress();
  EXPECT_EQ(pair.notes_a.num_sent, 0);
  pair.settle();
  EXPECT_EQ(pair.notes_a.num_sent, 1);
}

TEST(RailsTest, AnUnreadyDestinationIsNotTouchedAndHoldsNothingBack) {
  std::mt19937 random(1);
  Pair pair(2, 1000);
  Message first(collective_tag(1, 0, 0), random_bytes(300'000, random));
  Message second(collective_tag(1, 0, 1), random_bytes(300'000, random));
  first.in.ready = false;
  pair.b.recv(first.in);
  pair.b.recv(second.in);
  pair.b.open(1, {});
  pair.a.send(first.out);
  pair.a.send(second.out);
  pair.settle();
  EXPECT_EQ(second.got, second.data);
  EXPECT_EQ(first.got, std::vector<std::byte>(first.data.size()));
  pair.b.make_ready(first.in);
  pair.settle();
  EXPECT_EQ(first.got, first.data);
  EXPECT_FALSE(pair.a.has_outstanding());
}

TEST(RailsTest, WhatIsOnTheWayWhenTheLastLaneDiesWaitsForTheNext) {
  std::mt19937 random(1);
  Pair pair(2, 1000);
  Message message(collective_tag(1, 0, 0), random_bytes(300'000, random));
  pair.b.recv(message.in);
  pair.b.open(1, {});
  pair.a.send(message.out);
  for (int i = 0; i < 50; ++i) pair.step();
  for (size_t rail : {0u, 1u}) pair.a.lose_lane(rail, "test");
  pair.settle();
  EXPECT_FALSE(pair.a.has_lane());
  EXPECT_FALSE(pair.b.has_lane()) << "a closed connection ends the lane";
  EXPECT_EQ(pair.b.state(), Link::State::up);
  pair.connect(1);
  pair.settle();
  EXPECT_EQ(message.got, message.data);
  EXPECT_EQ(pair.notes_a.num_lost, 2);
  EXPECT_GT(pair.counters_a[0].frames_repeated + pair.counters_a[1].frames_repeated, 0u);
  EXPECT_FALSE(pair.a.has_outstanding());
}

TEST(RailsTest, AnOnlyLaneThatIsConnectedAnewSendsAgainWhatWasOnTheWay) {
  std::mt19937 random(1);
  Pair pair(1, 1000, 1, kAnyRail, nullptr, 0, true);
  std::list<Message> messages;
  for (uint32_t i = 0; i < 3; ++i) {
    const size_t bytes = i == 1 ? 300'000 : 500;
    Message& message = messages.emplace_back(collective_tag(1, 0, i), random_bytes(bytes, random));
    pair.b.recv(message.in);
  }
  pair.b.open(1, {});
  for (Message& message : messages) pair.a.send(message.out);
  for (int i = 0; i < 50; ++i) pair.step();
  EXPECT_TRUE(pair.a.may_lose_lanes());
  EXPECT_TRUE(pair.a.is_alone(0));
  pair.a.lose_lane(0, "test");
  pair.settle();
  EXPECT_EQ(pair.a.state(), Link::State::up);
  EXPECT_EQ(pair.b.state(), Link::State::up);
  EXPECT_FALSE(pair.b.has_lane()) << "a closed connection ends the lane";
  pair.connect(0);
  pair.settle();
  for (const Message& message : messages) EXPECT_EQ(message.got, message.data);
  EXPECT_EQ(pair.notes_b.num_arrived, 3);
  EXPECT_GT(pair.counters_a[0].frames_repeated, 0u);
  EXPECT_FALSE(pair.a.has_outstanding());
}

TEST(RailsTest, ALaneThatIsFoundLostIsProgress) {
  Pair pair(1, 1000, 1, kAnyRail, nullptr, 0, true);
  pair.settle();
  pair.a.lose_lane(0, "test");
  EXPECT_TRUE(pair.b.progress()) << "nothing to read, but a lane less";
  EXPECT_FALSE(pair.b.has_lane());
}

constexpr uint8_t kTickets[] = {0, 1, 2, 128};

// Messages of all kinds, while lanes die on either side at random moments and come back. Some of
// these are for urgent messages.
class DyingLanesTest : public testing::TestWithParam<unsigned> {};

TEST_P(DyingLanesTest, EverythingArrivesOnceAndInOrder) {
  std::mt19937 random(GetParam());
  const size_t num_classes = random() % 4;
  const bool reconnects = random() % 2 == 0;
  const size_t num_rails = (num_classes > 0 || reconnects ? 1 : 2) + random() % 3;
  Pair pair(num_rails, 1 + random() % 5000, 1, kAnyRail, nullptr, num_classes, reconnects);
  const size_t num_lanes = pair.a.num_lanes();
  std::list<Message> messages;
  pair.b.open(1, {});
  for (uint32_t i = 0; i < 40; ++i) {
    const size_t bytes = random() % 3 == 0 ? random() % 200'000 : random() % 3000;
    const bool is_p2p = random() % 2 == 0;
    const Tag tag = is_p2p ? point_to_point_tag(random() % 2) : collective_tag(1, 0, i);
    Message& message = messages.emplace_back(tag, random_bytes(bytes, random));
    message.out.rail = is_p2p || random() % 2 ? kAnyRail : static_cast<uint8_t>(random() % 4);
    message.in.ready = is_p2p || random() % 2 == 0;
    if (num_classes > 0) message.out.order.ticket = kTickets[random() % 4];
    // Collectives post what they receive before they let anything come.
    if (!is_p2p) pair.b.recv(message.in);
  }
  auto to_send = messages.begin();
  auto to_recv = messages.begin();
  for (int i = 0; i < 200'000 && pair.notes_b.num_arrived < 40; ++i) {
    if (random() % 20 == 0 && to_send != messages.end()) pair.a.send((to_send++)->out);
    if (random() % 20 == 0 && to_recv != messages.end()) {
      if (is_point_to_point(to_recv->in.tag)) pair.b.recv(to_recv->in);
      ++to_recv;
    }
    if (random() % 50 == 0) {
      for (auto it = messages.begin(); it != to_recv; ++it) {
        if (!it->in.ready && random() % 2) pair.b.make_ready(it->in);
      }
    }
    if (random() % 200 == 0) {
      Link& loser = random() % 2 ? pair.a : pair.b;
      const size_t lane = random() % num_lanes;
      loser.lose_lane(lane, "test");
    }
    for (size_t lane = 0; lane < num_lanes; ++lane) {
      const bool both_lost = !pair.a.channel(lane) && !pair.b.channel(lane);
      if (both_lost && random() % 100 == 0) pair.connect(lane);
    }
    if (random() % 2) pair.a.progress();
    if (random() % 2) pair.b.progress();
  }
  for (Message& message : messages) {
    if (!message.in.ready) pair.b.make_ready(message.in);
  }
  for (size_t rail = 0; rail < num_rails; ++rail) {
    if (!pair.a.channel(rail) && !pair.b.channel(rail)) pair.connect(rail);
  }
  pair.settle();
  EXPECT_TRUE(pair.notes_a.failure.ok()) << pair.notes_a.failure;
  EXPECT_TRUE(pair.notes_b.failure.ok()) << pair.notes_b.failure;
  EXPECT_EQ(pair.notes_a.num_sent, 40);
  EXPECT_EQ(pair.notes_b.num_arrived, 40);
  // Messages of one tag meet their receives in order, or the sizes would not fit.
  for (Message& message : messages) EXPECT_TRUE(message.got == message.data);
  EXPECT_FALSE(pair.a.has_outstanding());
  EXPECT_FALSE(pair.b.has_outstanding());
}

INSTANTIATE_TEST_SUITE_P(Seeds, DyingLanesTest, testing::Range(0u, 60u));

}  // namespace
}  // namespace dmlcomm::transport
