// What the traffic of a rail tells of its rate, and which rail small messages take.
#include "transport/rail_meter.h"

#include <gtest/gtest.h>

#include <array>
#include <map>
#include <vector>

#include "base/clock.h"

namespace dmlcomm::transport {
namespace {

using Traffic = RailMeter::Traffic;

constexpr uint64_t kBytes = 1'000'000;
constexpr int64_t kPeriodNs = 20 * kNsPerMs;
constexpr double kBitsOfPeriod = 8 * kBytes * 50.0;  // per second

// A period in which the rail carries `bytes`.
void carry(RailMeter& meter, uint64_t bytes, Traffic traffic) {
  Channel::Flow now;
  now.confirmed_bytes = bytes;
  meter.add({}, now, bytes);
  meter.end_period(0, kPeriodNs, 0, traffic);
}

TEST(RailMeterTest, TheBestOfFourPeriodsCounts) {
  RailMeter meter;
  carry(meter, kBytes, Traffic::telling);
  EXPECT_DOUBLE_EQ(meter.bits_per_second(), kBitsOfPeriod);
  for (int i = 0; i < 3; ++i) carry(meter, kBytes / 2, Traffic::telling);
  EXPECT_DOUBLE_EQ(meter.bits_per_second(), kBitsOfPeriod);
  carry(meter, kBytes / 2, Traffic::telling);
  EXPECT_DOUBLE_EQ(meter.bits_per_second(), kBitsOfPeriod / 2);
}

TEST(RailMeterTest, APeriodWithMuchFewerBytesDoesNotCountBesideOthers) {
  RailMeter meter;
  const auto burst = [&] {
    Channel::Flow now;
    now.confirmed_bytes = kBytes / 10;
    meter.add({}, now, kBytes / 10);
    meter.end_period(0, kPeriodNs / 20, 0, Traffic::telling);
  };
  burst();
  EXPECT_DOUBLE_EQ(meter.bits_per_second(), 2 * kBitsOfPeriod);
  carry(meter, kBytes, Traffic::telling);
  EXPECT_DOUBLE_EQ(meter.bits_per_second(), kBitsOfPeriod);
  for (int i = 0; i < 3; ++i) burst();
  EXPECT_DOUBLE_EQ(meter.bits_per_second(), kBitsOfPeriod);
  burst();
  EXPECT_DOUBLE_EQ(meter.bits_per_second(), 2 * kBitsOfPeriod);
}

// Parameter servers have no operations, and their bytes wait for each other.
TEST(RailMeterTest, TheArbiterHearsWhatMessagesCarryWhileTheRailIsBusy) {
  const auto seat = JobSeat::create().value();
  RailMeter meter;
  meter.arbitrate({seat, "eth0"}, {});
  const auto told = [&] { return static_cast<double>(seat->nic("eth0")->bits_per_second.load()); };
  int64_t now = 0;
  // The next one begins before one is confirmed, which takes a period.
  const auto carry_busily = [&](int frames) {
    meter.begin_frame(now, kBytes);
    for (int i = 1; i <= frames; ++i) {
      if (i < frames) meter.begin_frame(now, kBytes);
      now += kPeriodNs;
      meter.end_frame(now, kBytes);
    }
  };
  for (int i = 0; i < 10; ++i) {
    carry_busily(3);
    now += kNsPerS;
  }
  EXPECT_EQ(told(), 0);  // it had too short a time to tell
  carry_busily(5);
  EXPECT_NEAR(told(), kBitsOfPeriod, 1);
  // After a second another window begins, in which the bytes that are under way do not count.
  carry_busily(60);
  EXPECT_NEAR(told(), 0.9 * kBitsOfPeriod, 1);
  EXPECT_EQ(meter.bits_per_second(), 0);
}

TEST(RailMeterTest, FewSmallMessagesDoNotMakeARailSlow) {
  RailMeter meter;
  carry(meter, kBytes, Traffic::vague);
  for (int i = 0; i < 10; ++i) carry(meter, kBytes / 50, Traffic::vague);
  EXPECT_DOUBLE_EQ(meter.bits_per_second(), kBitsOfPeriod);
  carry(meter, 2 * kBytes, Traffic::vague);
  EXPECT_DOUBLE_EQ(meter.bits_per_second(), 2 * kBitsOfPeriod);
}

TEST(RailMeterTest, SamplesOfSmallMessagesTellThatARailIsSlow) {
  RailMeter meter;
  carry(meter, kBytes, Traffic::vague);
  for (int i = 0; i < 4; ++i) {
    meter.add_sample(kBytes / 100, kPeriodNs / 40);
    meter.add_sample(kBytes / 100, 3 * kPeriodNs / 40);
    carry(meter, kBytes / 50, Traffic::vague);
  }
  EXPECT_DOUBLE_EQ(meter.bits_per_second(), kBitsOfPeriod / 5);
}

TEST(RailMeterTest, FewBytesOfSmallOperationsDoNotHideWhatLargeOnesTell) {
  RailMeter meter;
  carry(meter, 100, Traffic::vague);
  carry(meter, kBytes, Traffic::telling);
  EXPECT_DOUBLE_EQ(meter.bits_per_second(), kBitsOfPeriod);
  // A rail with a small share of them needs several, whatever comes in between.
  RailMeter slow;
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(slow.bits_per_second(), 0);
    carry(slow, kBytes / 160, Traffic::telling);
    carry(slow, 100, Traffic::vague);
  }
  EXPECT_DOUBLE_EQ(slow.bits_per_second(), kBitsOfPeriod / 160);
}

TEST(RailMeterTest, LargeFramesAreTimedWhileARailHasAny) {
  RailMeter meter;
  meter.begin_frame(0, kBytes / 2);
  meter.begin_frame(kPeriodNs / 8, kBytes / 2);
  meter.end_frame(kPeriodNs / 4, kBytes / 2);
  meter.end_frame(kPeriodNs / 2, kBytes / 2);
  carry(meter, kBytes, Traffic::telling);
  EXPECT_DOUBLE_EQ(meter.bits_per_second(), 2 * kBitsOfPeriod);
}

// The first bytes after a pause may pass a shaper at once: ten frames in a tenth of the time.
TEST(RailMeterTest, FramesBetweenPausesShowNoMoreThanTheWholeTime) {
  RailMeter meter;
  for (int64_t i = 0; i < 10; ++i) {
    meter.begin_frame(i * kPeriodNs / 10, kBytes / 10);
    meter.end_frame(i * kPeriodNs / 10 + kPeriodNs / 100, kBytes / 10);
  }
  carry(meter, kBytes, Traffic::telling);
  EXPECT_DOUBLE_EQ(meter.bits_per_second(), kBitsOfPeriod);
  EXPECT_TRUE(meter.is_lower_bound());
  carry(meter, kBytes / 2, Traffic::telling);
  EXPECT_FALSE(meter.is_lower_bound());
  EXPECT_DOUBLE_EQ(meter.bits_per_second(), kBitsOfPeriod / 2);
}

// What a probe and the messages behind it leave.
TEST(RailMeterTest, ALongPieceTellsTheRateWhateverFollows) {
  RailMeter meter;
  meter.begin_frame(0, kBytes);
  meter.end_frame(kPeriodNs / 4, kBytes);
  for (int i = 0; i < 10; ++i) {
    meter.begin_frame(kPeriodNs / 2, kBytes / 100);
    meter.end_frame(kPeriodNs, kBytes / 100);
  }
  carry(meter, 2 * kBytes, Traffic::telling);
  EXPECT_DOUBLE_EQ(meter.bits_per_second(), 4 * kBitsOfPeriod);
  EXPECT_FALSE(meter.is_lower_bound());
}

// A rail that is taken for slow gets little to carry. In use for half of another one's time, it may
// be twice as fast.
TEST(RailMeterTest, ARailThatWasInUseForLessThanAnotherIsFaster) {
  double times_assumed = kBitsOfPeriod / 1e9;
  const auto carry_a_quarter = [&](RailMeter& meter, int64_t in_use_ns, int64_t most_in_use_ns) {
    for (int i = 0; i < 4; ++i) {
      meter.begin_frame(0, kBytes / 16);
      meter.end_frame(in_use_ns / 4, kBytes / 16);
    }
    Channel::Flow now;
    now.confirmed_bytes = kBytes / 4;
    meter.add({}, now, kBytes / 4);
    meter.end_period(0, kPeriodNs, 0, Traffic::telling, {most_in_use_ns, times_assumed});
  };
  RailMeter meter;
  meter.assume(1e9);
  carry(meter, kBytes / 4, Traffic::telling);
  carry_a_quarter(meter, kPeriodNs / 2, kPeriodNs / 2);
  EXPECT_DOUBLE_EQ(meter.bits_per_second(), kBitsOfPeriod / 4);
  for (int i = 0; i < 3; ++i) {
    EXPECT_DOUBLE_EQ(meter.bits_per_second(), kBitsOfPeriod / 4) << i;
    carry_a_quarter(meter, kPeriodNs / 4, kPeriodNs / 2);
  }
  EXPECT_DOUBLE_EQ(meter.bits_per_second(), kBitsOfPeriod / 2);
  // But not more than is assumed beside the others, and not if it was in use as long now and then.
  times_assumed = 0.6 * kBitsOfPeriod / 1e9;
  for (int i = 0; i < 3; ++i) carry_a_quarter(meter, kPeriodNs / 8, kPeriodNs);
  EXPECT_DOUBLE_EQ(meter.bits_per_second(), 0.6 * kBitsOfPeriod);
  for (int i = 0; i < 8; ++i) {
    carry_a_quarter(meter, kPeriodNs / 4, i % 3 == 2 ? kPeriodNs / 4 : kPeriodNs);
  }
  EXPECT_DOUBLE_EQ(meter.bits_per_second(), 0.6 * kBitsOfPeriod);
}

TEST(RailMeterTest, SamplesOfSmallOperationsDoNotLowerWhatLargeOnesHaveShown) {
  RailMeter meter;
  for (int i = 0; i < 5; ++i) {  // with pauses
    meter.begin_frame(i * kPeriodNs / 5, kBytes / 5);
    meter.end_frame(i * kPeriodNs / 5 + kPeriodNs / 10, kBytes / 5);
  }
  carry(meter, kBytes, Traffic::telling);
  EXPECT_DOUBLE_EQ(meter.bits_per_second(), kBitsOfPeriod);
  for (int i = 0; i < 8; ++i) {
    meter.add_sample(kBytes / 50, kPeriodNs);
    carry(meter, kBytes / 50, Traffic::vague);
  }
  EXPECT_DOUBLE_EQ(meter.bits_per_second(), kBitsOfPeriod);
  EXPECT_TRUE(meter.is_lower_bound());
}

TEST(RailMeterTest, AFrameTakesTheRailThatIsThroughFirst) {
  std::array<RailMeter, 2> rails;
  EXPECT_EQ(RailMeter::first_through(rails, 50'000), 0);
  rails[0].begin_frame(0, 50'000);
  EXPECT_EQ(RailMeter::first_through(rails, 50'000), 1);
  carry(rails[0], kBytes, Traffic::telling);
  carry(rails[1], kBytes / 4, Traffic::telling);
  EXPECT_EQ(RailMeter::first_through(rails, 50'000), 0);
  for (int i = 0; i < 3; ++i) rails[0].begin_frame(0, 50'000);
  EXPECT_EQ(RailMeter::first_through(rails, 50'000), 1);
  for (int i = 0; i < 4; ++i) rails[0].end_frame(1, 50'000);
  EXPECT_EQ(RailMeter::first_through(rails, 50'000), 0);
}

TEST(RailMeterTest, UrgentMessagesGoBeforeThoseOfLaterClassesForAWhile) {
  constexpr int64_t kNow = 1000 * kNsPerMs;
  RailMeter meter;
  EXPECT_FALSE(meter.urgent().has_any());
  meter.note_urgent(2, kNow);
  EXPECT_TRUE(meter.urgent().has_any());
  for (const size_t later : {0, 3, 4}) EXPECT_TRUE(meter.urgent().is_before(later, kNow)) << later;
  for (const size_t other : {1, 2}) EXPECT_FALSE(meter.urgent().is_before(other, kNow)) << other;
  EXPECT_FALSE(meter.urgent().is_before(0, kNow + kNsPerS));
}

TEST(RailMeterTest, UrgentMessagesOfOneGroupAreThoseOfAllOnTheirNic) {
  constexpr int64_t kNow = 1000 * kNsPerMs;
  RailMeter one, other, elsewhere;
  one.share_urgent(UrgentTimes::of("a"));
  other.share_urgent(UrgentTimes::of("a"));
  elsewhere.share_urgent(UrgentTimes::of("b"));
  one.note_urgent(1, kNow);
  EXPECT_TRUE(other.urgent().is_before(0, kNow));
  EXPECT_FALSE(elsewhere.urgent().has_any());
}

class SmallMessagesTest : public testing::Test {
 protected:
  // Messages of 16 KiB by the rail that they take, or -1.
  std::map<int, int> take(int count) {
    std::map<int, int> found;
    for (int i = 0; i < count; ++i) {
      ++found[RailMeter::next_for_small(rails_, 16384, 0)];
    }
    return found;
  }

  std::array<RailMeter, 3> rails_;
};

TEST_F(SmallMessagesTest, TheyGoByWhatIsAssumedBeforeARateIsKnown) {
  for (RailMeter& rail : rails_) rail.assume(50e9);
  EXPECT_EQ(take(9), (std::map<int, int>{{0, 3}, {1, 3}, {2, 3}}));
  for (size_t rail = 0; rail < 3; ++rail) rails_[rail].assume(rail == 0 ? 100e9 : 50e9);
  EXPECT_NEAR(take(4000)[0], 2000, 5);
  // Others are as far from what was assumed.
  carry(rails_[1], kBytes, Traffic::telling);
  EXPECT_NEAR(take(4000)[0], 2000, 5);
}

// As in a ring, whose messages all took the other rail: that shows nothing of this one.
TEST_F(SmallMessagesTest, ALowerBoundOfItsRateLeavesNoRailOut) {
  carry(rails_[0], kBytes, Traffic::telling);
  carry(rails_[1], kBytes, Traffic::telling);
  carry(rails_[2], kBytes / 10, Traffic::slowed);
  EXPECT_EQ(take(9000)[2], 3000);
  for (int i = 0; i < 4; ++i) carry(rails_[2], kBytes / 10, Traffic::telling);
  EXPECT_EQ(take(9000)[2], 0);
}

TEST_F(SmallMessagesTest, TheyGoByRateAndLeaveOutARailThatIsMuchSlower) {
  carry(rails_[0], kBytes, Traffic::telling);
  carry(rails_[1], kBytes / 2, Traffic::telling);
  carry(rails_[2], kBytes / 10, Traffic::telling);
  EXPECT_EQ(take(9000), (std::map<int, int>{{0, 6000}, {1, 3000}}));
}

TEST_F(SmallMessagesTest, ARailThatSmallOperationsShowedAsSlowIsTriedNowAndThen) {
  carry(rails_[0], kBytes, Traffic::vague);
  carry(rails_[1], kBytes, Traffic::vague);
  rails_[2].add_sample(kBytes / 10, kPeriodNs);
  carry(rails_[2], kBytes / 10, Traffic::vague);
  const int tried = take(9000)[2];
  EXPECT_GE(tried, 1);
  EXPECT_LE(tried, 9);
}

RailMeter rail_of_200_mbit(uint32_t round_trip_us) {
  RailMeter rail;
  rail.assume(200e6);
  Channel::Flow flow;
  flow.min_rtt_us = round_trip_us;
  rail.add({}, flow, 0);
  rail.end_period(kNsPerS, 0, 0, RailMeter::Traffic::vague);
  return rail;
}

class RailInUseTest : public testing::Test {
 protected:
  // One connection carries `bytes` at `bps` in an operation of that length.
  void carry(uint64_t bytes, double bps, double latency_s = 0,
             RailMeter::Traffic traffic = RailMeter::Traffic::telling) {
    Channel::Flow now = flow_;
    const double seconds = 8 * static_cast<double>(bytes) / bps;
    now.confirmed_bytes += bytes;
    now.busy_us += static_cast<uint64_t>(seconds * 1e6);
    now.min_rtt_us = 80;
    meter_.add(flow_, now, bytes);
    flow_ = now;
    meter_.end_period(0, static_cast<int64_t>(seconds * kNsPerS), latency_s, traffic);
  }

  std::vector<RailMeter> rails_of_200_and_100_mbit() {
    std::vector<RailMeter> rails(2);
    carry(1'000'000, 200e6);
    rails[0] = meter_;
    for (int i = 0; i < 4; ++i) carry(1'000'000, 100e6);
    rails[1] = meter_;
    return rails;
  }

  Channel::Flow flow_;
  RailMeter meter_;
};

TEST_F(RailInUseTest, TheBestOfTheLastPeriodsCountsAndOlderOnesAreForgotten) {
  EXPECT_EQ(meter_.bits_per_second(), 0);
  carry(1'000'000, 200e6);
  carry(1'000'000, 150e6);
  EXPECT_NEAR(meter_.bits_per_second(), 200e6, 1e6);
  for (int i = 0; i < 4; ++i) carry(1'000'000, 50e6);
  EXPECT_NEAR(meter_.bits_per_second(), 50e6, 1e6);
  carry(1'000'000, 200e6);
  EXPECT_NEAR(meter_.bits_per_second(), 200e6, 1e6);
  EXPECT_EQ(meter_.round_trip_us(), 80);
}

// Another path, or one that has become longer.
TEST_F(RailInUseTest, ARoundTripThatRisesIsNoticedWhenShorterOnesAreOld) {
  const auto read = [&](uint32_t round_trip_us, int64_t now_ns) {
    Channel::Flow flow;
    flow.min_rtt_us = round_trip_us;
    meter_.add({}, flow, 0);
    meter_.end_period(now_ns, 0, 0, RailMeter::Traffic::vague);
    return meter_.round_trip_us();
  };
  int64_t now = 1000 * kNsPerS;
  EXPECT_EQ(read(80, now), 80);
  for (int i = 0; i < 9; ++i) EXPECT_EQ(read(5000, now += kNsPerS), 80) << i;
  for (int i = 0; i < 11; ++i) read(5000, now += kNsPerS);
  EXPECT_EQ(meter_.round_trip_us(), 5000);
  EXPECT_EQ(read(90, now += kNsPerS), 90);
  // Periods without a reading change nothing; after a long silence old ones do not count.
  EXPECT_EQ(read(0, now += 1000 * kNsPerS), 90);
  EXPECT_EQ(read(3000, now), 3000);
}

TEST_F(RailInUseTest, MessagesThatLatencyFillsOnlyShowThatTheRailIsFasterThanThat) {
  carry(1'000'000, 200e6);
  for (int i = 0; i < 8; ++i) carry(20'000, 10e6, 0.01);
  EXPECT_NEAR(meter_.bits_per_second(), 200e6, 1e6);
  carry(20'000, 400e6, 1);
  EXPECT_NEAR(meter_.bits_per_second(), 400e6, 2e6);
}

TEST_F(RailInUseTest, TrafficThatMeetsAtOnePortCountsUntilThereIsBetter) {
  carry(1'000'000, 25e6, 0, RailMeter::Traffic::vague);
  EXPECT_NEAR(meter_.bits_per_second(), 25e6, 1e6);
  carry(1'000'000, 200e6);
  for (int i = 0; i < 8; ++i) carry(1'000'000, 25e6, 0, RailMeter::Traffic::vague);
  EXPECT_NEAR(meter_.bits_per_second(), 200e6, 1e6);
}

TEST_F(RailInUseTest, BytesThatBelongToNoOperationTellNothing) {
  carry(1'000'000, 200e6);
  for (int i = 0; i < 8; ++i) carry(1'000'000, 9e9, 0, RailMeter::Traffic::mixed);
  EXPECT_NEAR(meter_.bits_per_second(), 200e6, 1e6);
  // Some of these bytes were given before.
  Channel::Flow now = flow_;
  now.confirmed_bytes += 1'000'000;
  meter_.add(flow_, now, 20'000);
  meter_.end_period(0, 1 * kNsPerMs, 0, RailMeter::Traffic::telling);
  EXPECT_NEAR(meter_.bits_per_second(), 200e6, 1e6);
}

TEST_F(RailInUseTest, LargeMessagesThatLeaveRoomOnlyShowThatTheRailIsFasterThanThat) {
  carry(1'000'000, 200e6);
  for (int i = 0; i < 8; ++i) carry(1'000'000, 100e6, 0, RailMeter::Traffic::slowed);
  EXPECT_NEAR(meter_.bits_per_second(), 200e6, 1e6);
}

TEST_F(RailInUseTest, SmallMessagesTakeRailsAsTheirRatesAre) {
  std::vector<RailMeter> rails = rails_of_200_and_100_mbit();
  std::array<int, 2> num_messages{};
  for (int i = 0; i < 60; ++i) ++num_messages.at(RailMeter::next_for_small(rails, 8000, 0));
  EXPECT_EQ(num_messages, (std::array{40, 20}));
}

// As in a ring, where each waits for the one before.
TEST_F(RailInUseTest, SmallMessagesOneAfterTheOtherTakeTheFastestRail) {
  std::vector<RailMeter> rails = rails_of_200_and_100_mbit();
  for (int i = 0; i < 50; ++i) {
    EXPECT_EQ(RailMeter::next_for_small(rails, 8000, i * kNsPerMs), 0) << i;
  }
}

// Messages that leave faster than is assumed do not count for ever.
TEST(RailMeterTest, ANearRailIsTakenAgainSoonAfterManySmallMessages) {
  std::vector<RailMeter> rails{rail_of_200_mbit(20'000), rail_of_200_mbit(100)};
  for (int i = 0; i < 10'000; ++i) RailMeter::next_for_small(rails, 8000, kNsPerS);
  EXPECT_EQ(RailMeter::next_for_small(rails, 8000, kNsPerS + 6 * kNsPerMs), 1);
}

TEST_F(RailInUseTest, SmallMessagesOneAfterTheOtherTakeTurnsOnRailsThatAreEquallyFast) {
  carry(1'000'000, 200e6);
  std::vector<RailMeter> rails(2, meter_);
  std::array<int, 2> num_messages{};
  for (int i = 0; i < 50; ++i) {
    ++num_messages.at(RailMeter::next_for_small(rails, 8000, i * kNsPerMs));
  }
  EXPECT_EQ(num_messages, (std::array{25, 25}));
}

// An operation waits for the slowest of its messages.
TEST_F(RailInUseTest, SmallMessagesTakeNoRailThatIsMuchSlower) {
  std::vector<RailMeter> rails(2);
  carry(1'000'000, 50e6);
  rails[0] = meter_;
  carry(1'000'000, 200e6);
  rails[1] = meter_;
  for (int i = 0; i < 50; ++i) {
    EXPECT_EQ(RailMeter::next_for_small(rails, 8000, i * kNsPerMs), 1) << i;
  }
}

TEST(RailMeterTest, SmallMessagesTakeTheNearRailUnlessTheirBytesTakeLonger) {
  std::vector<RailMeter> rails{rail_of_200_mbit(10'000), rail_of_200_mbit(100)};
  EXPECT_EQ(RailMeter::nearest(rails, 0, 8), 1u);
  EXPECT_EQ(RailMeter::nearest(rails, 1, 8), 1u);
  for (int i = 0; i < 50; ++i) {
    EXPECT_EQ(RailMeter::next_for_small(rails, 8000, i * kNsPerMs), 1) << i;
  }
  // 512 KiB take 21 ms.
  std::array<int, 2> num_messages{};
  for (int i = 0; i < 8; ++i)
    ++num_messages.at(RailMeter::next_for_small(rails, 512 * 1024, kNsPerS));
  EXPECT_EQ(num_messages, (std::array{4, 4}));
  // Those before it on the near one take longer than the way on the far one.
  rails[1].begin_frame(0, 256 * 1024);
  EXPECT_EQ(RailMeter::first_through(rails, 16 * 1024), 0);
  rails[1].end_frame(kNsPerMs, 256 * 1024);
  EXPECT_EQ(RailMeter::first_through(rails, 16 * 1024), 1);
}

TEST(RailMeterTest, VerySmallMessagesStayTogetherOnRailsThatAreEquallyFar) {
  const std::vector<RailMeter> rails(2, rail_of_200_mbit(100));
  EXPECT_EQ(RailMeter::nearest(rails, 0, 8), 0u);
  EXPECT_EQ(RailMeter::nearest(rails, 1, 8), 1u);
}

TEST_F(RailInUseTest, ABudgetFillsWithTheShareOfTheRate) {
  carry(1'000'000, 80e6);
  EXPECT_TRUE(meter_.take_large(1u << 20, 0));
  const double rate = meter_.bits_per_second() / 8;
  meter_.share(0.5);
  EXPECT_EQ(meter_.frame_bytes(1u << 20), 16u * 1024);
  // A frame of 50 ms of the share, beyond the 2 ms that had come together.
  const auto bytes = static_cast<size_t>(rate * 0.5 * 0.05);
  EXPECT_TRUE(meter_.take_large(bytes, 1 * kNsPerS));
  EXPECT_FALSE(meter_.take_large(bytes, 1 * kNsPerS + 47 * kNsPerMs));
  EXPECT_TRUE(meter_.take_large(bytes, 1 * kNsPerS + 49 * kNsPerMs));
  meter_.share(1);
  EXPECT_TRUE(meter_.take_large(bytes, 1 * kNsPerS + 49 * kNsPerMs));
}

// A rank that only receives sends receipts.
TEST_F(RailInUseTest, BytesThatAreNoMessagesTellNothing) {
  for (int i = 0; i < 50; ++i) {
    Channel::Flow now = flow_;
    now.confirmed_bytes += 20'000;
    meter_.add(flow_, now, 0);
    flow_ = now;
    meter_.end_period(0, 100 * kNsPerMs, 0, RailMeter::Traffic::telling);
  }
  EXPECT_EQ(meter_.bits_per_second(), 0);
}

TEST_F(RailInUseTest, SmallMessagesAddUp) {
  for (int i = 0; i < 3; ++i) carry(5'000, 100e6);
  EXPECT_EQ(meter_.bits_per_second(), 0);
  carry(5'000, 100e6);
  EXPECT_NEAR(meter_.bits_per_second(), 100e6, 1e6);
}

// A rail that waits for another one carries frames in between: 1 MB in 0.04 s.
TEST_F(RailInUseTest, TheTimeOfLargeFramesCountsIfItIsShorter) {
  Channel::Flow flow;
  flow.confirmed_bytes = 1'050'000;
  flow.busy_us = 170'000;
  meter_.add({}, flow, flow.confirmed_bytes);
  meter_.begin_frame(10 * kNsPerMs, 500'000);
  meter_.begin_frame(20 * kNsPerMs, 250'000);  // of another connection, at the same time
  meter_.end_frame(25 * kNsPerMs, 500'000);
  meter_.end_frame(30 * kNsPerMs, 250'000);
  meter_.begin_frame(150 * kNsPerMs, 300'000);
  meter_.end_frame(170 * kNsPerMs, 300'000);
  meter_.end_period(170 * kNsPerMs, 170 * kNsPerMs, 0, RailMeter::Traffic::telling);
  EXPECT_NEAR(meter_.bits_per_second(), 210e6, 1e6);
}

TEST_F(RailInUseTest, FramesMayOutlastThePeriod) {
  Channel::Flow flow;
  meter_.begin_frame(0, 1'000'000);
  meter_.begin_frame(0, 1'000'000);
  for (int period = 1; period <= 2; ++period) {
    Channel::Flow now = flow;
    now.confirmed_bytes += 1'000'000;
    meter_.add(flow, now, 1'000'000);
    flow = now;
    meter_.end_frame(period * 20 * kNsPerMs, 1'000'000);
    meter_.end_period(period * 40 * kNsPerMs, 100 * kNsPerMs, 0, RailMeter::Traffic::telling);
  }
  EXPECT_NEAR(meter_.bits_per_second(), 200e6, 1e6);
}

// Two connections of one rail at the same time: the rail carries both.
TEST_F(RailInUseTest, ConnectionsOfOneTimeAddUp) {
  Channel::Flow flow;
  flow.confirmed_bytes = 1'000'000;
  flow.busy_us = 80'000;
  meter_.add({}, flow, flow.confirmed_bytes);
  meter_.add({}, flow, flow.confirmed_bytes);
  meter_.end_period(0, 80 * kNsPerMs, 0, RailMeter::Traffic::telling);
  EXPECT_NEAR(meter_.bits_per_second(), 200e6, 1e6);
}

}  // namespace
}  // namespace dmlcomm::transport
