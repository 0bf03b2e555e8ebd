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
// Shapers' bursts are a part of what few bytes show. Rates of so many times as many bytes, and so
// many at least, are surer; but two of them may differ by a step of rounding.
constexpr uint64_t kTimesSurer = 8;
constexpr uint64_t kLeastSurerBytes = 2 * 1024 * 1024;
constexpr int kHysteresisOfSurer = 2;

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

bool AgreedRates::is_surer(uint64_t bytes) const {
  return bytes >= kLeastSurerBytes && bytes >= kTimesSurer * from_bytes_;
}

std::optional<AgreedRates::Change> AgreedRates::consider(const RankReport& report, bool is_small,
                                                         uint64_t bytes) {
  if (num_turns_ < kMostTurns && ++num_operations_ == kOperationsPerTurn) {
    num_operations_ = 0;
    ++num_turns_;
  }
  Change change;
  const int of_trip = distance(report.nearness, in_use_.nearness);
  int of_rates = 0;
  for (size_t rail = 0; rail < RankReport::kMaxRails; ++rail) {
    const int of_rail = distance(report.rates[rail], in_use_.rates[rail]);
    if (of_rail > std::max(of_rates, of_trip)) change.rail = rail;
    of_rates = std::max(of_rates, of_rail);
  }
  const int difference = std::max(of_rates, of_trip);
  const bool counts = !is_small || adds_to_what_is_known(report);
  if (difference < kHysteresis || (!counts && !are_alike(report, last_))) num_others_ = 0;
  num_others_ += difference < kHysteresis ? 0 : 1;
  last_ = report;
  const int of_large = is_alone() ? kConfirmationsAlone : kConfirmations;
  const bool is_repeated = num_others_ >= (counts ? of_large : kConfirmationsOfSmall);
  const bool is_confirmed = is_repeated || (counts && difference >= kMuch);
  const bool counts_more = is_surer(bytes);
  const bool are_others =
      counts_more ? of_rates >= kHysteresisOfSurer : is_confirmed && of_rates >= kHysteresis;
  if (are_others || counts_more) from_bytes_ = bytes;
  are_measured_ = are_measured_ || are_others || (counts && is_confirmed);
  if (are_others) {
    in_use_ = report;
  } else if (is_repeated || of_trip >= kMuch) {
    in_use_.nearness = report.nearness;
    change.rail.reset();
  } else {
    return std::nullopt;
  }
  change.num_reports = std::max(std::exchange(num_others_, 0), 1);
  if (num_turns_ > 0) {
    --num_turns_;
    alone_left_ = kAlone * kSmallPerTelling;
  }
  return change;
}

}  // namespace dmlcomm::engine
