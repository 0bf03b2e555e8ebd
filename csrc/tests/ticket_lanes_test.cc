// Lanes for urgent messages, over pipes in memory: what goes over them, and what keeps its order.

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <memory>
#include <random>
#include <vector>

#include "base/clock.h"
#include "tests/link_pair.h"

namespace dmlcomm::transport {
namespace {

using tests::begin_to_send;
using tests::MemoryChannel;
using tests::Message;
using tests::Pair;
using tests::random_bytes;

constexpr size_t kNumClasses = 3;

Pair pair_with_classes(size_t num_rails = 1) {
  return Pair(num_rails, 10'000, 1, kAnyRail, nullptr, kNumClasses);
}

Message message_of(Tag tag, size_t bytes, uint8_t ticket) {
  std::mt19937 random(static_cast<unsigned>(bytes));
  Message message(tag, random_bytes(bytes, random));
  message.out.order.ticket = ticket;
  return message;
}

// Bytes that a has given to the lane wait in its kernel, or in a switch.
void stop(Pair& pair, size_t lane, bool stopped = true) {
  dynamic_cast<MemoryChannel*>(pair.a.channel(lane))->stop(stopped);
}

// The lanes of all classes are connected, and all that was sent before is known to have come.
void connect_classes(Pair& pair) {
  Message urgent = message_of(collective_tag(9, 0, 0), 100, 0);
  pair.b.recv(urgent.in);
  pair.a.send(urgent.out);
  pair.settle();
  pair.b.confirm_soon();
  pair.settle();
  for (size_t lane = 0; lane < pair.a.num_lanes(); ++lane) {
    if (!pair.a.channel(lane)) pair.connect(lane);
  }
}

TEST(TicketLanesTest, ClassesGetLanesWhenTheyAreFirstOfUse) {
  Pair pair(2, 10'000, 1, kAnyRail, nullptr, kNumClasses);
  std::vector<Message> messages;
  for (const uint8_t ticket : {255, 128, 0, 0, 127}) {
    const auto number = static_cast<uint32_t>(messages.size());
    messages.push_back(message_of(collective_tag(1, 0, number), 100, ticket));
  }
  const std::vector<std::vector<size_t>> wanted = {{}, {}, {2, 3}, {}, {6, 7}};
  for (size_t i = 0; i < messages.size(); ++i) {
    pair.a.send(messages[i].out);
    EXPECT_EQ(pair.a.take_wanted_lanes(), wanted[i]) << i;
  }
}

// Of several rails one leads to the peer, and the others are detours.
TEST(TicketLanesTest, DetoursGetNone) {
  Pair pair(2, 10'000, 1, 1, nullptr, kNumClasses);
  Message urgent = message_of(collective_tag(1, 0, 0), 100, 0);
  pair.a.send(urgent.out);
  EXPECT_EQ(pair.a.take_wanted_lanes(), std::vector<size_t>{3});
}

TEST(TicketLanesTest, AnUrgentMessagePassesWhatKernelsHoldOfOthers) {
  for (const size_t bytes : {1000u, 500'000u}) {
    Pair pair = pair_with_classes();
    connect_classes(pair);
    Message before = message_of(collective_tag(1, 0, 0), 400'000, 128);
    Message less = message_of(collective_tag(1, 0, 1), bytes, 2);
    Message most = message_of(collective_tag(1, 0, 2), bytes, 0);
    for (Message* message : {&before, &less, &most}) pair.b.recv(message->in);
    pair.b.open(1, {});
    pair.settle();
    stop(pair, 0);
    stop(pair, 3);
    pair.a.send(before.out);
    pair.a.send(less.out);
    pair.a.send(most.out);
    pair.settle();
    EXPECT_EQ(most.got, most.data);
    EXPECT_LT(less.in.arrived, bytes);
    EXPECT_LT(before.in.arrived, before.data.size());
    stop(pair, 0, false);
    stop(pair, 3, false);
    pair.settle();
    EXPECT_EQ(less.got, less.data);
    EXPECT_EQ(before.got, before.data);
    EXPECT_FALSE(pair.a.has_outstanding());
  }
}

TEST(TicketLanesTest, MessagesOfOneTagKeepTheirOrderOnTheirLane) {
  Pair pair = pair_with_classes();
  connect_classes(pair);
  Message first = message_of(point_to_point_tag(7), 1000, 128);
  Message second = message_of(point_to_point_tag(7), 2000, 0);
  Message other = message_of(point_to_point_tag(8), 3000, 0);
  for (Message* message : {&first, &second, &other}) pair.b.recv(message->in);
  stop(pair, 0);
  for (Message* message : {&first, &second, &other}) pair.a.send(message->out);
  pair.a.flush_deferred();
  pair.settle();
  EXPECT_EQ(other.got, other.data);
  EXPECT_EQ(second.in.arrived, 0u);
  stop(pair, 0, false);
  pair.settle();
  // Their sizes would not fit in another order.
  EXPECT_TRUE(pair.notes_b.failure.ok()) << pair.notes_b.failure;
  EXPECT_EQ(second.got, second.data);

  pair.b.confirm_soon();
  pair.settle();
  stop(pair, 0);
  Message third = message_of(point_to_point_tag(7), 4000, 0);
  pair.b.recv(third.in);
  pair.a.send(third.out);
  pair.a.flush_deferred();
  pair.settle();
  EXPECT_EQ(third.got, third.data) << "all before it are known to have come";
}

TEST(TicketLanesTest, MessagesOfOneTagKeepTheirOrderWhenClassesBegin) {
  Pair pair = pair_with_classes();
  Message first = message_of(point_to_point_tag(7), 1000, 128);
  Message second = message_of(point_to_point_tag(7), 2000, 0);
  for (Message* message : {&first, &second}) pair.b.recv(message->in);
  stop(pair, 0);
  pair.a.send(first.out);
  Message urgent = message_of(collective_tag(1, 0, 0), 100, 0);
  pair.b.recv(urgent.in);
  pair.a.send(urgent.out);
  for (const size_t lane : {1u, 2u, 3u}) pair.connect(lane);
  pair.a.send(second.out);
  pair.a.flush_deferred();
  pair.settle();
  EXPECT_EQ(second.in.arrived, 0u);
  stop(pair, 0, false);
  pair.settle();
  EXPECT_TRUE(pair.notes_b.failure.ok()) << pair.notes_b.failure;
  EXPECT_EQ(first.got, first.data);
  EXPECT_EQ(second.got, second.data);
}

TEST(TicketLanesTest, TheUsualLaneTakesOverFromALostOne) {
  Pair pair = pair_with_classes();
  connect_classes(pair);
  Message urgent = message_of(collective_tag(1, 0, 0), 300'000, 0);
  begin_to_send(pair, urgent);
  for (int i = 0; i < 10; ++i) pair.step();
  pair.a.lose_lane(1, "cut");
  EXPECT_EQ(pair.a.take_lost_lanes(), std::vector<size_t>{1});
  pair.settle();
  EXPECT_EQ(urgent.got, urgent.data);
  EXPECT_EQ(pair.notes_b.num_lost, 1) << "the peer loses its end, too";
  EXPECT_GT(pair.counters_a[0].frames_repeated, 0u);
  EXPECT_EQ(pair.a.state(), Link::State::up);
  EXPECT_FALSE(pair.a.has_outstanding());
}

// Time goes by for a, which looks for stalled lanes now and then.
void pass(Pair& pair, int64_t* now, int64_t ms) {
  for (const int64_t end = *now + ms * kNsPerMs; *now < end; *now += 50 * kNsPerMs) {
    pair.a.lose_stalled_lanes(*now);
    pair.settle();
  }
}

TEST(TicketLanesTest, AnUrgentLaneThatWaitsInTheNetworkIsNotLostWhileItsCableLives) {
  Pair pair = pair_with_classes(2);
  connect_classes(pair);
  Message urgent = message_of(collective_tag(1, 0, 0), 300'000, 0);
  begin_to_send(pair, urgent);
  stop(pair, 2);
  int64_t now = kNsPerS;
  pass(pair, &now, 1400);
  EXPECT_NE(pair.a.channel(2), nullptr);
  EXPECT_EQ(pair.notes_a.num_lost, 0);
  pass(pair, &now, 200);
  EXPECT_EQ(pair.a.channel(2), nullptr) << "it has waited for too long";
  EXPECT_EQ(pair.notes_a.num_lost, 1);
  pair.settle();
  EXPECT_EQ(urgent.got, urgent.data);
}

TEST(TicketLanesTest, AnUrgentLaneIsLostWithItsCable) {
  Pair pair = pair_with_classes(2);
  connect_classes(pair);
  Message urgent = message_of(collective_tag(1, 0, 0), 300'000, 0);
  begin_to_send(pair, urgent);
  stop(pair, 0);
  stop(pair, 2);
  int64_t now = kNsPerS;
  pass(pair, &now, 450);
  EXPECT_EQ(pair.notes_a.num_lost, 0);
  pass(pair, &now, 300);
  EXPECT_EQ(pair.notes_a.num_lost, 2) << "the usual lane was idle, and has been asked";
  pair.settle();
  EXPECT_EQ(urgent.got, urgent.data);
}

TEST(TicketLanesTest, TheUsualLaneOfTheOnlyRailComesBack) {
  Pair pair = pair_with_classes();
  connect_classes(pair);
  Message message = message_of(collective_tag(1, 0, 0), 300'000, 128);
  begin_to_send(pair, message);
  pair.b.channel(0)->shut_down();
  pair.settle();
  EXPECT_EQ(pair.a.state(), Link::State::up);
  EXPECT_EQ(pair.a.channel(0), nullptr);
  EXPECT_LT(message.in.arrived, message.data.size());
  pair.connect(0);
  pair.settle();
  EXPECT_EQ(message.got, message.data);
  EXPECT_FALSE(pair.a.has_outstanding());
}

void learn_rate(RailMeter& rail) {
  Channel::Flow now;
  now.confirmed_bytes = 1'000'000;
  rail.add({}, now, now.confirmed_bytes);
  rail.end_period(0, 100 * kNsPerMs, 0, RailMeter::Traffic::telling);
}

// What the lane of a has not written, and how long an urgent message may have to wait, in bytes.
// Only the first message of an operation says how long that has waited.
TEST(TicketLanesTest, WaitsOfUrgentOperationsCountUntilTheirFirstByteLeaves) {
  constexpr uint64_t kStartedUs = 5'000'000;
  for (const size_t bytes : {1000u, 400'000u}) {
    Pair pair(1, 10'000);
    Message first = message_of(collective_tag(1, 0, 0), bytes, 0);
    Message second = message_of(collective_tag(1, 0, 1), bytes, 0);
    first.out.waited_ns = kStartedUs * 1000;
    for (Message* message : {&first, &second}) pair.b.recv(message->in);
    pair.b.open(1, {});
    pair.settle();
    const UrgentWaits& waits = pair.counters_a[0].urgent_waits;
    const int64_t begin = now_ns();
    pair.a.send(first.out);
    pair.a.send(second.out);
    pair.a.flush_deferred();
    pair.settle();
    const auto most_us = kStartedUs + static_cast<uint64_t>(now_ns() - begin) / 1000;
    EXPECT_EQ(first.got, first.data);
    EXPECT_EQ(second.got, second.data);
    EXPECT_EQ(waits.num, 1u);
    EXPECT_GE(waits.total_us, kStartedUs);
    EXPECT_LE(waits.total_us, most_us);
    EXPECT_EQ(waits.longest_us, waits.total_us);
  }
}

size_t queued_bytes(Pair& pair) {
  size_t bytes = 0;
  pair.a.for_each_lane([&](size_t, const Lane& lane) { bytes += lane.queued_bytes(); });
  return bytes;
}
uint64_t blocking_bytes(Pair& pair) {
  uint64_t bytes = 0;
  pair.a.for_each_lane([&](size_t, const Lane& lane) { bytes += lane.blocking_bytes(); });
  return bytes;
}

TEST(TicketLanesTest, CreditBoundsThePartThatHasBegun) {
  constexpr size_t kLeastCredit = 32 * 1024;  // which this rate does not exceed
  for (const bool is_limited : {false, true}) {
    RailMeter rail;
    Pair pair(1, 10'000, 1, kAnyRail, &rail);
    learn_rate(rail);
    if (is_limited) pair.a.limit_credit();
    Message large = message_of(collective_tag(1, 0, 0), 400'000, 128);
    begin_to_send(pair, large);
    size_t most = queued_bytes(pair);
    while (pair.step()) most = std::max(most, queued_bytes(pair));
    EXPECT_EQ(large.got, large.data);
    if (is_limited) {
      EXPECT_LE(most, kLeastCredit);
    } else {
      EXPECT_GT(most, 2 * kLeastCredit);
    }
  }
}

TEST(TicketLanesTest, AnUrgentMessageWaitsForNoMoreThanTheBoundSays) {
  RailMeter rail;
  Pair pair(1, 1000, 1, kAnyRail, &rail);
  learn_rate(rail);
  pair.a.limit_credit();
  Message large = message_of(collective_tag(1, 0, 0), 400'000, 128);
  Message urgent = message_of(collective_tag(1, 0, 1), 100, 0);
  pair.b.recv(urgent.in);
  EXPECT_EQ(blocking_bytes(pair), 0u) << "there was no large message";
  begin_to_send(pair, large);
  pair.step();
  const size_t before = large.in.arrived;
  pair.a.send(urgent.out);
  while (urgent.in.arrived < urgent.data.size() && pair.step()) {
  }
  const size_t waited = large.in.arrived - before;
  EXPECT_LE(waited, blocking_bytes(pair));
  EXPECT_GT(10 * waited, blocking_bytes(pair));
  EXPECT_LT(large.in.arrived, large.data.size());
  pair.settle();
}

TEST(TicketLanesTest, ASmallMessageIsPassedBySixtyFourOthersAtMost) {
  constexpr size_t kMostPassed = 64, kNumUrgent = 200, kBytes = 500;
  Pair pair(1, 1000);
  Message begun = message_of(collective_tag(1, 0, 0), 5000, 128);
  Message waiting = message_of(collective_tag(1, 0, 1), kBytes, 200);
  std::vector<Message> urgent;
  for (uint32_t i = 0; i < kNumUrgent; ++i) {
    urgent.push_back(message_of(collective_tag(2, 0, i), kBytes, 3));
  }
  pair.b.recv(begun.in);
  pair.b.recv(waiting.in);
  for (Message& message : urgent) pair.b.recv(message.in);
  pair.a.send(begun.out);
  pair.a.send(waiting.out);
  for (Message& message : urgent) pair.a.send(message.out);
  while (waiting.in.arrived < kBytes && pair.step()) {
  }
  const auto num_before = std::count_if(urgent.begin(), urgent.end(), [](const Message& message) {
    return message.in.arrived == kBytes;
  });
  EXPECT_GE(num_before, kMostPassed);
  EXPECT_LE(num_before, kMostPassed + 4) << "but for those that came in the same step";
  pair.settle();
  EXPECT_FALSE(pair.a.has_outstanding());
}

// Small messages keep the channel busy, over a lane of their own and over the same one.
TEST(TicketLanesTest, ALargeMessageHasAShareBesideUrgentSmallOnes) {
  constexpr size_t kBytes = 60'000, kWaiting = 10, kMostUrgent = 2'000;
  for (const size_t num_classes : {size_t{0}, kNumClasses}) {
    Pair pair(1, 10'000, 1, kAnyRail, nullptr, num_classes);
    if (num_classes > 0) connect_classes(pair);
    Message large = message_of(collective_tag(1, 0, 0), 3'000'000, 128);
    large.out.age = 1;
    pair.b.recv(large.in);
    pair.b.open(1, {});
    pair.settle();
    std::deque<Message> urgent;
    const auto send_urgent = [&] {
      const auto number = static_cast<uint32_t>(urgent.size());
      Message& message = urgent.emplace_back(message_of(collective_tag(2, 0, number), kBytes, 1));
      message.out.age = 2;
      pair.b.recv(message.in);
      pair.a.send(message.out);
    };
    for (size_t i = 0; i < kWaiting; ++i) send_urgent();
    pair.a.send(large.out);
    const int before = pair.notes_b.num_arrived;
    while (large.in.arrived < large.data.size() && urgent.size() < kMostUrgent) {
      const auto num_arrived = static_cast<size_t>(pair.notes_b.num_arrived - before);
      while (urgent.size() < num_arrived + kWaiting) send_urgent();
      pair.step();
    }
    EXPECT_TRUE(large.got == large.data) << large.in.arrived << " bytes have come";
    EXPECT_GT(urgent.size() * kBytes, 4 * large.data.size()) << "urgent ones go first";
    pair.settle();
  }
}

// Of two peers that are reached over the same rail.
TEST(TicketLanesTest, LargeMessagesGiveWayToUrgentOnesForOtherPeers) {
  RailMeter rail;
  Pair urgent(1, 10'000, 1, kAnyRail, &rail, kNumClasses);
  Pair pair(1, 10'000, 1, kAnyRail, &rail, kNumClasses);
  learn_rate(rail);
  const int64_t before = now_ns();
  connect_classes(urgent);
  EXPECT_FALSE(rail.urgent().has_any()) << "it went over the usual connection";
  Message small = message_of(collective_tag(1, 0, 0), 100, 0);
  urgent.b.recv(small.in);
  urgent.a.send(small.out);
  urgent.settle();
  EXPECT_TRUE(rail.urgent().is_before(0, before));

  constexpr int64_t kLonger = 3600 * kNsPerS;
  rail.note_urgent(1, now_ns() + kLonger);
  auto* const kernel = dynamic_cast<MemoryChannel*>(pair.a.channel(0));
  kernel->queued_bytes = 1'000'000;
  Message large = message_of(collective_tag(1, 0, 1), 400'000, 128);
  begin_to_send(pair, large);
  pair.settle();
  EXPECT_EQ(large.in.arrived, 0u);
  EXPECT_TRUE(rail.take_yielding());
  kernel->queued_bytes = 0;
  const Deadline deadline =
      Deadline::after_s(10);  // what the kernel says is asked for now and then
  while (large.in.arrived < large.data.size() && !deadline.expired()) pair.settle();
  EXPECT_EQ(large.got, large.data);
}

TEST(TicketLanesTest, UrgentMessagesGiveWayToMoreUrgentOnesAlone) {
  RailMeter rail;
  Pair pair(1, 10'000, 1, kAnyRail, &rail, kNumClasses);
  learn_rate(rail);
  connect_classes(pair);
  rail.note_urgent(2, now_ns() + 3600 * kNsPerS);
  for (size_t lane = 0; lane < pair.a.num_lanes(); ++lane) {
    dynamic_cast<MemoryChannel*>(pair.a.channel(lane))->queued_bytes = 1'000'000;
  }
  Message as_urgent = message_of(collective_tag(1, 0, 0), 400'000, 1);
  Message less = message_of(collective_tag(1, 0, 1), 400'000, 2);
  begin_to_send(pair, as_urgent);
  begin_to_send(pair, less);
  pair.settle();
  EXPECT_EQ(as_urgent.got, as_urgent.data);
  EXPECT_LT(less.in.arrived, less.data.size());
}

TEST(TicketLanesTest, ALaneIsBusyWhileItsChannelTakesBytes) {
  Pair pair = pair_with_classes();
  const int64_t before = now_ns();
  Message message = message_of(collective_tag(1, 0, 0), 50'000, 128);
  pair.a.send(message.out);  // of which the channel takes 10,000 bytes a time
  const int64_t after = now_ns();
  pair.a.for_each_lane([&](size_t, Lane& lane) {
    EXPECT_TRUE(lane.is_busy(before));
    EXPECT_FALSE(lane.is_busy(after + kNsPerS));
  });
  pair.settle();
  pair.a.for_each_lane([&](size_t, Lane& lane) { EXPECT_FALSE(lane.is_busy(before)); });
}

}  // namespace
}  // namespace dmlcomm::transport
