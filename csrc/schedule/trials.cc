#include "schedule/trials.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "schedule/planner.h"

namespace dmlcomm::schedule {
namespace {

// Operations of a trial: the first one also connects ranks that have not met before.
constexpr size_t kTrialOperations = 2;
// Another algorithm has to be so much faster; later times are compared with those of the trials,
// when other things went on.
constexpr double kWorthwhile = 0.95;
constexpr double kWorthwhileLater = 0.8;
// Estimates are no more than that: where a network carries bursts faster than its rate, a small
// vector takes a third of the time. A trial that costs at most so much is made without a promise.
constexpr double kMostTimesSlower = 4;
constexpr double kMostSecondsSlower = 10e-3;
// Of short operations, algorithms that are nearly the best are tried so many times each.
constexpr double kNearlyBest = 1.4;
constexpr size_t kMostTrials = 4;
// After the first operations at these times, a trial waits for others to pass: for half of those
// since, until it is so many, and most of any twenty take the usual algorithm. The second trial of
// an algorithm, and those after it, wait for more.
constexpr size_t kFirstOperations = 8;
constexpr size_t kOperationsPerCalmOne = 2;
constexpr size_t kCalmOperations = 6;
constexpr size_t kCalmOperationsLater = 16;
// When so many operations in a row take twice as long or half, the network has changed, and all
// times are forgotten.
constexpr double kMuch = 2;
// With an estimate that has changed so much, the times of before tell nothing.
constexpr double kOther = 1.2;
constexpr size_t kSlowOperations = 6;

}  // namespace

Trials::Trials(std::vector<const Algorithm*> candidates, const std::vector<double>& estimates_s) {
  DMLCOMM_CHECK(!candidates.empty() && candidates.size() == estimates_s.size());
  for (size_t i = 0; i < candidates.size(); ++i) {
    candidates_.push_back({.algorithm = candidates[i], .estimate_s = estimates_s[i]});
  }
  usual_ = next_ = cheapest_of(estimates_s);
  candidates_[usual_].num_trials = 1;
}

// The median, of an even number the shorter one: neither luck nor an interruption, and not the
// first operation of a trial.
double Trials::Candidate::usual_s() const {
  auto sorted = seconds;
  const size_t known = std::min(num_times, sorted.size());
  std::sort(sorted.begin(), sorted.begin() + static_cast<ptrdiff_t>(known));
  return known == 0 ? 0 : sorted[(known - 1) / 2];
}

void Trials::estimate(const std::vector<double>& estimates_s) {
  // Rates hardly change the times of short operations.
  const bool is_short = usual_s() > 0 && usual_s() <= kShortSeconds;
  for (size_t i = 0; i < candidates_.size(); ++i) {
    const double before = std::exchange(candidates_[i].estimate_s, estimates_s[i]);
    const double change = estimates_s[i] / before;
    if (!is_short && (change > kOther || change * kOther < 1)) forget_times(i);
  }
  if (candidates_[usual_].num_times > 0 || is_trying()) return;
  usual_ = next_ = cheapest_of(estimates_s);
  candidates_[usual_].num_trials = 1;
}

void Trials::forget_times(size_t candidate) {
  candidates_[candidate].seconds = {};
  candidates_[candidate].num_times = 0;
  candidates_[candidate].num_trials = candidate == usual_ ? 1 : 0;
  is_settled_ = false;
  num_since_change_ = 0;
}

void Trials::started() {
  ++num_started_;
  ++num_since_change_;
  if (trials_to_start_ > 0 && --trials_to_start_ == 0) next_ = usual_;
}

void Trials::ended(const Algorithm& algorithm, double seconds) {
  const auto it = std::find_if(candidates_.begin(), candidates_.end(),
                               [&](const Candidate& c) { return c.algorithm == &algorithm; });
  if (it == candidates_.end()) return;
  num_calm_ = is_trying() ? 0 : num_calm_ + 1;
  if (trials_to_end_ > 0 && &*it == &candidates_[trial_]) --trials_to_end_;
  if (seconds > 0) {
    notice_change(*it, seconds);
    it->seconds[it->num_times++ % it->seconds.size()] = seconds;
  }
  choose();
}

void Trials::notice_change(const Candidate& candidate, double seconds) {
  const double before = candidate.usual_s();
  const bool is_far = before > 0 && (seconds > kMuch * before || kMuch * seconds < before);
  num_slow_ = is_far ? num_slow_ + 1 : 0;
  if (num_slow_ < kSlowOperations) return;
  num_slow_ = 0;
  for (size_t i = 0; i < candidates_.size(); ++i) forget_times(i);
}

size_t Trials::best_known() const {
  const double worthwhile = is_settled_ ? kWorthwhileLater : kWorthwhile;
  size_t best = usual_;
  for (size_t i = 0; i < candidates_.size(); ++i) {
    const double time = candidates_[i].usual_s();
    const double limit = candidates_[best].usual_s() * (best == usual_ ? worthwhile : 1);
    if (time > 0 && time < limit) best = i;
  }
  return best;
}

// Of those that were not tried; the usual one if no trial is cheap.
size_t Trials::most_promising() const {
  size_t found = usual_;
  double limit = std::min(kMostTimesSlower * usual_s(), usual_s() + kMostSecondsSlower);
  for (size_t i = 0; i < candidates_.size(); ++i) {
    if (candidates_[i].num_trials > 0 || candidates_[i].estimate_s >= limit) continue;
    limit = kClearlyCheaper * candidates_[i].estimate_s;
    found = i;
  }
  return found;
}

// Of those that take a short time; the usual one if the others were tried often enough.
size_t Trials::least_tried_of_best() const {
  size_t found = usual_;
  size_t least = kMostTrials;
  if (usual_s() > kShortSeconds) return found;
  for (size_t i = 0; i < candidates_.size(); ++i) {
    const Candidate& candidate = candidates_[i];
    const double time = candidate.usual_s();
    if (i == usual_ || candidate.num_trials >= least) continue;
    if (time == 0 || time > kNearlyBest * usual_s()) continue;
    least = candidate.num_trials;
    found = i;
  }
  return found;
}

size_t Trials::calm_before(const Candidate& trial) const {
  if (trial.num_trials > 0) return kCalmOperationsLater;
  const size_t num_later = num_since_change_ - std::min(kFirstOperations, num_since_change_);
  return std::min(kCalmOperations, num_later / kOperationsPerCalmOne);
}

void Trials::choose() {
  const size_t best = best_known();
  if (is_trying() && best == usual_) return;
  trials_to_start_ = trials_to_end_ = 0;
  usual_ = next_ = best;
  if (candidates_[usual_].num_times < kTrialOperations) return;
  next_ = most_promising();
  if (next_ == usual_) next_ = least_tried_of_best();
  is_settled_ = next_ == usual_;
  if (is_settled_) return;
  trial_ = std::exchange(next_, usual_);
  if (num_calm_ < calm_before(candidates_[trial_])) return;
  next_ = trial_;
  ++candidates_[trial_].num_trials;
  trials_to_start_ = trials_to_end_ = kTrialOperations;
}

}  // namespace dmlcomm::schedule
