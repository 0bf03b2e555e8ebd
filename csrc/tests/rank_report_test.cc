// What ranks tell each other of rails and times.
#include "transport/rank_report.h"

#include <gtest/gtest.h>

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

TEST(RankReportTest, UnknownChangesNothing) {
  RankReport report;
  report.add_rate(0, 1e9);
  RankReport merged = report;
  merged.merge({});
  EXPECT_EQ(merged, report);
}

TEST(RankReportTest, RailsBeyondTheLastCountAsTheLast) {
  RankReport report;
  report.add_rate(RankReport::kMaxRails + 3, 1e9);
  EXPECT_NE(report.rates.back(), RankReport::kUnknown);
}

}  // namespace
}  // namespace dmlcomm::transport
