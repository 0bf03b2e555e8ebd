#include "engine/agreed_rates.h"

#include <algorithm>
#include <cstdint>
#include <cstdlib>

namespace dmlcomm::engine {
namespace {

using transport::RankReport;

// A rate is taken over if it differs by 30 % from the one in use in several reports in a row, or is
// half of it or twice. In eighths of powers of two, as reports have it. Operations that run alone
// are there to correct rates: so fewer of their reports suffice.
constexpr int kHysteresis = 3;
constexpr int kMuch = 8;
constexpr int kConfirmations = 4;
constexpr int kConfirmationsAlone = 2;

// How far apart two figures are; 0 where the new one is not known.
int distance(uint8_t figure, uint8_t in_use) {
  return figure == RankReport::kUnknown ? 0 : std::abs(figure - in_use);
}

}  // namespace

bool AgreedRates::consider(const RankReport& report) {
  if (num_turns_ < kMostTurns && ++num_operations_ == kOperationsPerTurn) {
    num_operations_ = 0;
    ++num_turns_;
  }
  int difference = distance(report.nearness, in_use_.nearness);
  for (size_t i = 0; i < RankReport::kMaxRails; ++i) {
    difference = std::max(difference, distance(report.rates[i], in_use_.rates[i]));
  }
  num_others_ = difference < kHysteresis ? 0 : num_others_ + 1;
  const int confirmations = is_alone() ? kConfirmationsAlone : kConfirmations;
  if (difference < kMuch && num_others_ < confirmations) return false;
  in_use_ = report;
  num_others_ = 0;
  if (num_turns_ > 0) {
    --num_turns_;
    num_alone_ = kAlone;
  }
  return true;
}

}  // namespace dmlcomm::engine
