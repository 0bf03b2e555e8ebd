// What ranks tell each other of rails and times, and how a rail's rate is found.
#include <gtest/gtest.h>

#include "base/clock.h"
#include "transport/rail_meter.h"
#include "transport/rank_report.h"

namespace dmlcomm::transport {
namespace {

TEST(RankReportTest, FiguresAreKeptToTheirPrecision) {
  for (double bps : {200e3, 48e6, 1e9, 95e9, 1.6e12}) {
    RankReport report;
    report.add_rate(1, bps);
    EXPECT_NEAR(RankReport::bits_per_second(report.rates[1]) / bps, 1, 0.05);
    EXPECT_EQ(report.rates[0], RankReport::kUnknown);
  }
  for (double us : {1.0, 60.0, 10'000.0}) {
    RankReport report;
    report.add_round_trip(us);
    EXPECT_NEAR(report.round_trip_us() / us, 1, 0.05);
  }
  for (double seconds : {2e-6, 0.4, 900.0}) {
    RankReport report;
    EXPECT_EQ(report.shortest_s(), 0);
    EXPECT_EQ(report.longest_s(), 0);
    report.set_time(seconds);
    EXPECT_NEAR(report.shortest_s() / seconds, 1, 0.001);
    EXPECT_NEAR(report.longest_s() / seconds, 1, 0.001);
  }
}

TEST(RankReportTest, TheSlowestRateTheLongestRoundTripAndBothEndsOfTimesRemain) {
  RankReport a, b;
  a.add_rate(0, 1e9);
  b.add_rate(0, 50e6);
  a.add_round_trip(900);
  b.add_round_trip(60);
  a.set_time(2.0);
  b.set_time(0.5);
  RankReport ab = a, ba = b;
  ab.merge(b);
  ba.merge(a);
  EXPECT_EQ(ab, ba);
  EXPECT_EQ(ab.rates, b.rates);
  EXPECT_NEAR(ab.round_trip_us(), 900, 45);
  EXPECT_NEAR(ab.shortest_s(), 0.5, 0.001);
  EXPECT_NEAR(ab.longest_s(), 2.0, 0.002);
}

TEST(RankReportTest, UnknownChangesNothingAndOffReplacesAll) {
  RankReport report, off;
  report.add_rate(0, 1e9);
  RankReport merged = report;
  merged.merge({});
  EXPECT_EQ(merged, report);
  off.rates.fill(RankReport::kOff);
  merged.merge(off);
  EXPECT_EQ(merged.rates.front(), RankReport::kOff);
}

TEST(RankReportTest, RailsBeyondTheLastCountAsTheLast) {
  RankReport report;
  report.add_rate(RankReport::kMaxRails + 3, 1e9);
  EXPECT_NE(report.rates.back(), RankReport::kUnknown);
}

class RailMeterTest : public testing::Test {
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

  Channel::Flow flow_;
  RailMeter meter_;
};

TEST_F(RailMeterTest, TheBestOfTheLastPeriodsCountsAndOlderOnesAreForgotten) {
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
TEST_F(RailMeterTest, ARoundTripThatRisesIsNoticedWhenShorterOnesAreOld) {
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

TEST_F(RailMeterTest, MessagesThatLatencyFillsOnlyShowThatTheRailIsFasterThanThat) {
  carry(1'000'000, 200e6);
  for (int i = 0; i < 8; ++i) carry(20'000, 10e6, 0.01);
  EXPECT_NEAR(meter_.bits_per_second(), 200e6, 1e6);
  carry(20'000, 400e6, 1);
  EXPECT_NEAR(meter_.bits_per_second(), 400e6, 2e6);
}

TEST_F(RailMeterTest, TrafficThatMeetsAtOnePortCountsUntilThereIsBetter) {
  carry(1'000'000, 25e6, 0, RailMeter::Traffic::vague);
  EXPECT_NEAR(meter_.bits_per_second(), 25e6, 1e6);
  carry(1'000'000, 200e6);
  for (int i = 0; i < 8; ++i) carry(1'000'000, 25e6, 0, RailMeter::Traffic::vague);
  EXPECT_NEAR(meter_.bits_per_second(), 200e6, 1e6);
}

TEST_F(RailMeterTest, BytesThatBelongToNoOperationTellNothing) {
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

TEST_F(RailMeterTest, LargeMessagesThatLeaveRoomOnlyShowThatTheRailIsFasterThanThat) {
  carry(1'000'000, 200e6);
  for (int i = 0; i < 8; ++i) carry(1'000'000, 100e6, 0, RailMeter::Traffic::slowed);
  EXPECT_NEAR(meter_.bits_per_second(), 200e6, 1e6);
}

TEST_F(RailMeterTest, SmallMessagesTakeRailsAsTheirRatesAre) {
  std::vector<RailMeter> rails(2);
  EXPECT_EQ(RailMeter::next_for_small(rails, 8000), std::nullopt);
  carry(1'000'000, 200e6);
  rails[0] = meter_;
  EXPECT_EQ(RailMeter::next_for_small(rails, 8000), std::nullopt);
  for (int i = 0; i < 4; ++i) carry(1'000'000, 100e6);
  rails[1] = meter_;
  std::array<int, 2> num_messages{};
  for (int i = 0; i < 60; ++i) ++num_messages.at(*RailMeter::next_for_small(rails, 8000));
  EXPECT_EQ(num_messages, (std::array{40, 20}));
}

// An operation waits for the slowest of its messages.
TEST_F(RailMeterTest, SmallMessagesTakeNoRailThatIsMuchSlower) {
  std::vector<RailMeter> rails(2);
  carry(1'000'000, 50e6);
  rails[0] = meter_;
  carry(1'000'000, 200e6);
  rails[1] = meter_;
  for (int i = 0; i < 50; ++i) EXPECT_EQ(RailMeter::next_for_small(rails, 8000), 1) << i;
}

TEST_F(RailMeterTest, ABudgetFillsWithTheShareOfTheRate) {
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

TEST_F(RailMeterTest, SmallMessagesAddUp) {
  for (int i = 0; i < 3; ++i) carry(5'000, 100e6);
  EXPECT_EQ(meter_.bits_per_second(), 0);
  carry(5'000, 100e6);
  EXPECT_NEAR(meter_.bits_per_second(), 100e6, 1e6);
}

// A rail that waits for another one carries frames in between: 1 MB in 0.04 s.
TEST_F(RailMeterTest, TheTimeOfLargeFramesCountsIfItIsShorter) {
  Channel::Flow flow;
  flow.confirmed_bytes = 1'050'000;
  flow.busy_us = 170'000;
  meter_.add({}, flow, flow.confirmed_bytes);
  meter_.begin_frame(10 * kNsPerMs);
  meter_.begin_frame(20 * kNsPerMs);  // of another connection, at the same time
  meter_.end_frame(25 * kNsPerMs, 500'000);
  meter_.end_frame(30 * kNsPerMs, 250'000);
  meter_.begin_frame(150 * kNsPerMs);
  meter_.end_frame(170 * kNsPerMs, 250'000);
  meter_.end_period(170 * kNsPerMs, 170 * kNsPerMs, 0, RailMeter::Traffic::telling);
  EXPECT_NEAR(meter_.bits_per_second(), 210e6, 1e6);
}

TEST_F(RailMeterTest, FramesMayOutlastThePeriod) {
  Channel::Flow flow;
  meter_.begin_frame(0);
  meter_.begin_frame(0);
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
TEST_F(RailMeterTest, ConnectionsOfOneTimeAddUp) {
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
