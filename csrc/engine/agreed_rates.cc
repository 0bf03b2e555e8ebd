#include "engine/agreed_rates.h"

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <utility>

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

std::optional<AgreedRates::Change> AgreedRates::consider(const RankReport& report) {
  if (num_turns_ < kMostTurns && ++num_operations_ == kOperationsPerTurn) {
    num_operations_ = 0;
    ++num_turns_;
  }
  Change change;
  int difference = distance(report.nearness, in_use_.nearness);
  for (size_t rail = 0; rail < RankReport::kMaxRails; ++rail) {
    const int of_rail = distance(report.rates[rail], in_use_.rates[rail]);
    if (of_rail > difference) change.rail = rail;
    difference = std::max(difference, of_rail);
  }
  num_others_ = difference < kHysteresis ? 0 : num_others_ + 1;
  const int confirmations = is_alone() ? kConfirmationsAlone : kConfirmations;
  if (difference < kMuch && num_others_ < confirmations) return std::nullopt;
  in_use_ = report;
  change.num_reports = std::exchange(num_others_, 0);
  if (num_turns_ > 0) {
    --num_turns_;
    alone_left_ = kAlone * kSmallPerTelling;
  }
  return change;
}

}  // namespace dmlcomm::engine
