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
// Small operations show bursts, and how late ranks come, rather than rates. Once there are rates,
// so many of their reports in a row have to say nearly the same.
constexpr int kConfirmationsOfSmall = 8;

// How far apart two figures are; 0 where the new one is not known.
int distance(uint8_t figure, uint8_t in_use) {
  return figure == RankReport::kUnknown ? 0 : std::abs(figure - in_use);
}

bool are_alike(const RankReport& a, const RankReport& b) {
  for (size_t rail = 0; rail < RankReport::kMaxRails; ++rail) {
    if (std::abs(a.rates[rail] - b.rates[rail]) >= kHysteresis) return false;
  }
  return true;
}

}  // namespace

bool AgreedRates::adds_to_what_is_known(const RankReport& report) const {
  if (!are_measured_) return true;
  for (size_t rail = 0; rail < RankReport::kMaxRails; ++rail) {
    const bool is_known = report.rates[rail] != RankReport::kUnknown;
    if (is_known && in_use_.rates[rail] == RankReport::kUnknown) return true;
  }
  return false;
}

std::optional<AgreedRates::Change> AgreedRates::consider(const RankReport& report, bool is_small) {
  if (num_turns_ < kMostTurns && ++num_operations_ == kOperationsPerTurn) {
    num_operations_ = 0;
    ++num_turns_;
  }
  Change change;
  const int of_trip = distance(report.nearness, in_use_.nearness);
  int difference = of_trip;
  for (size_t rail = 0; rail < RankReport::kMaxRails; ++rail) {
    const int of_rail = distance(report.rates[rail], in_use_.rates[rail]);
    if (of_rail > difference) change.rail = rail;
    difference = std::max(difference, of_rail);
  }
  const bool counts = !is_small || adds_to_what_is_known(report);
  if (difference < kHysteresis || (!counts && !are_alike(report, last_))) num_others_ = 0;
  num_others_ += difference < kHysteresis ? 0 : 1;
  last_ = report;
  const int of_large = is_alone() ? kConfirmationsAlone : kConfirmations;
  const int confirmations = counts ? of_large : kConfirmationsOfSmall;
  const bool is_confirmed = num_others_ >= confirmations || (counts && difference >= kMuch);
  if (!is_confirmed && of_trip < kMuch) return std::nullopt;
  if (is_confirmed) {
    in_use_ = report;
    are_measured_ = true;
  } else {
    in_use_.nearness = report.nearness;
    change.rail.reset();
  }
  change.num_reports = std::exchange(num_others_, 0);
  if (num_turns_ > 0) {
    --num_turns_;
    alone_left_ = kAlone * kSmallPerTelling;
  }
  return change;
}

}  // namespace dmlcomm::engine
