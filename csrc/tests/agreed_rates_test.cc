// When ranks take over other rates, and how often operations run alone because of that.
#include "engine/agreed_rates.h"

#include <gtest/gtest.h>

namespace dmlcomm::engine {
namespace {

using transport::RankReport;

RankReport report_of(double bits_per_second) {
  RankReport report;
  report.add_rate(0, bits_per_second);
  return report;
}

class AgreedRatesTest : public testing::Test {
 protected:
  AgreedRatesTest() { rates_.assume(0, 1e9); }

  bool consider(double bits_per_second, bool is_small = false) {
    return rates_.consider(report_of(bits_per_second), is_small).has_value();
  }
  // Operations that run alone from now on; each of them reports `bits_per_second`.
  size_t count_alone(double bits_per_second, bool tells = true) {
    size_t count = 0;
    for (; rates_.is_alone() && count < 1000; ++count) {
      rates_.planned(tells);
      consider(bits_per_second);
    }
    return count;
  }

  AgreedRates rates_;
};

TEST_F(AgreedRatesTest, ARateOfTwiceOrHalfIsTakenOverAtOnce) {
  EXPECT_TRUE(consider(0.4e9));
  EXPECT_FALSE(consider(0.4e9));
  EXPECT_TRUE(consider(1e9));
}

TEST_F(AgreedRatesTest, ARateThatDiffersLessIsTakenOverWhenReportsInARowConfirmIt) {
  for (int i = 0; i < 3; ++i) EXPECT_FALSE(consider(0.7e9));
  EXPECT_FALSE(consider(1e9));
  for (int i = 0; i < 3; ++i) EXPECT_FALSE(consider(0.7e9));
  EXPECT_FALSE(rates_.is_settled());
  EXPECT_TRUE(consider(0.7e9));
}

// A rail that had little to do may show its rate in steps.
TEST_F(AgreedRatesTest, TwoReportsCorrectARateWhileOperationsRunAlone) {
  ASSERT_TRUE(consider(0.4e9));
  ASSERT_TRUE(rates_.is_alone());
  EXPECT_FALSE(consider(0.6e9));
  EXPECT_FALSE(consider(0.4e9));
  EXPECT_FALSE(consider(0.6e9));
  EXPECT_TRUE(consider(0.6e9));
}

TEST_F(AgreedRatesTest, RatesThatAreNearlyTheSameOrNotKnownChangeNothing) {
  for (int i = 0; i < 100; ++i) {
    EXPECT_FALSE(consider(i % 2 == 0 ? 0.85e9 : 1.15e9));
    EXPECT_FALSE(rates_.consider({}, false).has_value());
  }
  EXPECT_TRUE(rates_.is_settled());
  EXPECT_FALSE(rates_.is_alone());
}

TEST_F(AgreedRatesTest, RatesOfSmallOperationsThatJumpChangeNothingAfterTheFirst) {
  EXPECT_TRUE(consider(0.2e9, true));
  for (int i = 0; i < 100; ++i) EXPECT_FALSE(consider(i % 3 == 0 ? 0.1e9 : i * 1e9, true)) << i;
  // Several in a row that say the same do, and one that tells.
  for (int i = 0; i < 7; ++i) EXPECT_FALSE(consider(0.5e9, true)) << i;
  EXPECT_TRUE(consider(0.5e9, true));
  EXPECT_TRUE(consider(0.2e9));
}

TEST_F(AgreedRatesTest, ARoundTripThatASmallOperationShowsIsTakenOverWithoutItsRates) {
  RankReport report = report_of(0.2e9);
  report.add_round_trip(100);
  EXPECT_TRUE(rates_.consider(report, true).has_value());
  RankReport later = report_of(3e9);
  later.add_round_trip(30);
  const auto change = rates_.consider(later, true);
  ASSERT_TRUE(change.has_value());
  EXPECT_EQ(change->rail, std::nullopt);
  EXPECT_EQ(rates_.in_use().rates, report.rates);
  EXPECT_EQ(rates_.in_use().nearness, later.nearness);
}

// Rates that are right stay as they are given, to the bit.
TEST_F(AgreedRatesTest, ARoundTripIsTakenOverWithoutRatesThatAreNearlyTheSame) {
  const RankReport before = rates_.in_use();
  RankReport report = report_of(0.85e9);
  report.add_round_trip(100);
  EXPECT_TRUE(rates_.consider(report, false).has_value());
  EXPECT_EQ(rates_.in_use().rates, before.rates);
  EXPECT_EQ(rates_.in_use().nearness, report.nearness);
}

TEST_F(AgreedRatesTest, WhatMuchLargerOperationsShowCountsAtOnceOnce) {
  constexpr uint64_t kBytes = 4'000'000;
  EXPECT_TRUE(consider(0.2e9, true));
  const auto consider_large = [&](double bits_per_second, uint64_t bytes) {
    return rates_.consider(report_of(bits_per_second), false, bytes).has_value();
  };
  EXPECT_FALSE(consider_large(0.17e9, kBytes / 4));
  EXPECT_TRUE(consider_large(0.17e9, kBytes));
  EXPECT_FALSE(consider_large(0.2e9, 7 * kBytes));
  EXPECT_FALSE(consider_large(0.17e9, 8 * kBytes));
  EXPECT_FALSE(consider_large(0.2e9, 8 * kBytes));
  EXPECT_TRUE(consider_large(0.2e9, 64 * kBytes));
}

TEST_F(AgreedRatesTest, LargerOperationsCorrectRatesThatSmallOnesHaveChanged) {
  constexpr uint64_t kBytes = 4'000'000;
  const auto consider_large = [&](double bits_per_second) {
    return rates_.consider(report_of(bits_per_second), false, kBytes).has_value();
  };
  EXPECT_TRUE(consider_large(0.2e9));
  for (int i = 0; i < 8; ++i) consider(0.5e9, true);
  ASSERT_EQ(rates_.in_use(), report_of(0.5e9));
  EXPECT_TRUE(consider_large(0.42e9));
}

TEST_F(AgreedRatesTest, ASmallOperationTellsTheFirstRateOfARailAtOnce) {
  EXPECT_TRUE(consider(0.2e9, true));
  RankReport report = report_of(0.2e9);
  report.add_rate(1, 0.3e9);
  EXPECT_TRUE(rates_.consider(report, true).has_value());
}

TEST_F(AgreedRatesTest, AChangeNamesTheFigureThatDiffersMost) {
  RankReport report = report_of(0.4e9);
  const auto at_once = rates_.consider(report, false);
  ASSERT_TRUE(at_once.has_value());
  EXPECT_EQ(at_once->rail, 0u);
  EXPECT_EQ(at_once->num_reports, 1);
  report.add_round_trip(300);
  const auto first_trip = rates_.consider(report, false);
  ASSERT_TRUE(first_trip.has_value());
  EXPECT_EQ(first_trip->rail, std::nullopt);
  while (rates_.is_alone()) rates_.planned(true);
  std::optional<AgreedRates::Change> change;
  for (int i = 0; i < 4; ++i) {
    ASSERT_FALSE(change.has_value());
    change = rates_.consider(report_of(0.3e9), false);
  }
  ASSERT_TRUE(change.has_value());
  EXPECT_EQ(change->rail, 0u);
  EXPECT_EQ(change->num_reports, 4);
}

TEST_F(AgreedRatesTest, OperationsRunAloneAfterwards) {
  ASSERT_TRUE(consider(0.4e9));
  EXPECT_EQ(count_alone(0.4e9), AgreedRates::kAlone);
  EXPECT_TRUE(rates_.is_settled());
}

TEST_F(AgreedRatesTest, SmallOperationsUseATurnUpMoreSlowly) {
  ASSERT_TRUE(consider(0.4e9));
  EXPECT_EQ(count_alone(0.4e9, false), AgreedRates::kAlone * AgreedRates::kSmallPerTelling);
  ASSERT_TRUE(consider(1e9));
  for (size_t i = 1; i < AgreedRates::kAlone; ++i) {
    rates_.planned(false);
    rates_.planned(true);
  }
  EXPECT_TRUE(rates_.is_alone());
}

// Without a bound every operation would run alone.
TEST_F(AgreedRatesTest, RatesThatChangeAllTheTimeAreFollowedButOperationsSeldomRunAlone) {
  size_t num_alone = 0;
  constexpr size_t kOperations = 1280;
  for (size_t i = 0; i < kOperations; ++i) {
    num_alone += rates_.is_alone() ? 1 : 0;
    rates_.planned(true);
    EXPECT_TRUE(consider(i % 2 == 0 ? 0.2e9 : 1e9)) << i;
  }
  const size_t most_turns = AgreedRates::kMostTurns + kOperations / AgreedRates::kOperationsPerTurn;
  EXPECT_LE(num_alone, most_turns * AgreedRates::kAlone);
  EXPECT_GT(num_alone, AgreedRates::kMostTurns);
}

TEST_F(AgreedRatesTest, TurnsComeBackWhileRatesStay) {
  for (size_t i = 0; i < AgreedRates::kMostTurns; ++i)
    ASSERT_TRUE(consider(i % 2 == 0 ? 0.2e9 : 1e9));
  while (rates_.is_alone()) rates_.planned(true);
  ASSERT_TRUE(consider(0.2e9));
  EXPECT_FALSE(rates_.is_alone());
  for (size_t i = 0; i < AgreedRates::kOperationsPerTurn; ++i) EXPECT_FALSE(consider(0.2e9));
  ASSERT_TRUE(consider(1e9));
  EXPECT_EQ(count_alone(1e9), AgreedRates::kAlone);
}

}  // namespace
}  // namespace dmlcomm::engine
