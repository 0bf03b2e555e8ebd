// What the traffic of a rail tells of its rate, and which rail small messages take.
#include "transport/rail_meter.h"

#include <gtest/gtest.h>

#include <array>
#include <map>
#include <optional>

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
  meter.begin_frame(0);
  meter.begin_frame(kPeriodNs / 8);
  meter.end_frame(kPeriodNs / 4, kBytes / 2);
  meter.end_frame(kPeriodNs / 2, kBytes / 2);
  carry(meter, kBytes, Traffic::telling);
  EXPECT_DOUBLE_EQ(meter.bits_per_second(), 2 * kBitsOfPeriod);
}

TEST(RailMeterTest, UrgentMessagesGoBeforeThoseOfLaterClassesForAWhile) {
  constexpr int64_t kNow = 1000 * kNsPerMs;
  RailMeter meter;
  EXPECT_FALSE(meter.has_urgent());
  meter.note_urgent(2, kNow);
  EXPECT_TRUE(meter.has_urgent());
  for (const size_t later : {0, 3, 4}) EXPECT_TRUE(meter.is_urgent_before(later, kNow)) << later;
  for (const size_t other : {1, 2}) EXPECT_FALSE(meter.is_urgent_before(other, kNow)) << other;
  EXPECT_FALSE(meter.is_urgent_before(0, kNow + kNsPerS));
}

class SmallMessagesTest : public testing::Test {
 protected:
  // Messages of 16 KiB by the rail that they take, or -1.
  std::map<int, int> take(int count) {
    std::map<int, int> found;
    for (int i = 0; i < count; ++i) {
      const std::optional<uint8_t> rail = RailMeter::next_for_small(rails_, 16384);
      ++found[rail ? *rail : -1];
    }
    return found;
  }

  std::array<RailMeter, 3> rails_;
};

TEST_F(SmallMessagesTest, NoneIsChosenBeforeAllRatesAreKnown) {
  carry(rails_[0], kBytes, Traffic::telling);
  EXPECT_EQ(take(1), (std::map<int, int>{{-1, 1}}));
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
  carry(rails_[2], kBytes / 10, Traffic::vague);
  const int tried = take(9000)[2];
  EXPECT_GE(tried, 1);
  EXPECT_LE(tried, 9);
}

}  // namespace
}  // namespace dmlcomm::transport
