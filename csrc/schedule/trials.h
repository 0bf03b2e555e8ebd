// Trials: which of several algorithms to take for operations of one size, by estimates at first,
// and by measured times as soon as there are any.
//
// An estimate is a promise. The algorithm with the lowest one is taken. If it turns out slower than
// another one promises, that one is tried, for a few operations, while the better of those that are
// known carries the rest; so is one whose trial costs some milliseconds at most. So a large vector
// does not find an algorithm that is estimated too high, and one that is estimated too low costs a
// few operations.
//
// Small operations are short beside what disturbs them, and cheap. So those that are nearly the
// best are tried in turns until each has been seen several times, and then the better median
// counts. But for the first operations, trials come apart: few pay for them at any time.
// After that only a large difference changes the choice, or a network that is another one.
//
// All ranks make the same calls in the same order, and so the same choices.
#pragma once

#include <array>
#include <cstddef>
#include <vector>

namespace dmlcomm::schedule {

struct Algorithm;

// Operations that take no longer are short beside what disturbs them, and say little of rates.
constexpr double kShortSeconds = 20e-3;

class Trials {
 public:
  Trials() = default;
  // `estimates_s` of `candidates`, one each; there is one or more.
  Trials(std::vector<const Algorithm*> candidates, const std::vector<double>& estimates_s);

  // New estimates of the same candidates.
  void estimate(const std::vector<double>& estimates_s);

  // What the next operation takes; the same until started().
  const Algorithm& next() const { return *candidates_[next_].algorithm; }
  // An operation has taken it.
  void started();
  // What operations take while nothing is tried.
  const Algorithm& usual() const { return *candidates_[usual_].algorithm; }
  // Of that one; 0: not known.
  double usual_s() const { return candidates_[usual_].usual_s(); }
  // Operations that have started.
  size_t num_started() const { return num_started_; }
  // An algorithm is tried, or its time is awaited.
  bool is_trying() const { return trials_to_start_ > 0 || trials_to_end_ > 0; }
  // An operation with this algorithm has taken `seconds` (0: that is not known). Every operation
  // that has started is told once.
  void ended(const Algorithm& algorithm, double seconds);

 private:
  struct Candidate {
    const Algorithm* algorithm = nullptr;
    double estimate_s = 0;
    std::array<double, 8> seconds{};  // the last times; 0: none yet
    size_t num_times = 0;
    size_t num_trials = 0;  // of the usual one, 1 for being usual

    double usual_s() const;
  };

  void forget_times(size_t candidate);
  void choose();
  void notice_change(const Candidate& candidate, double seconds);
  size_t best_known() const;
  size_t most_promising() const;
  size_t least_tried_of_best() const;
  // So many operations have to end between the last trial and this one.
  size_t calm_before(const Candidate& trial) const;

  std::vector<Candidate> candidates_;
  size_t usual_ = 0;
  size_t next_ = 0;
  size_t trial_ = 0;  // the last one that was tried
  size_t num_started_ = 0;
  size_t num_since_change_ = 0;  // of these, since times have been forgotten
  size_t trials_to_start_ = 0;
  size_t trials_to_end_ = 0;
  size_t num_calm_ = 0;      // operations that have ended since the last trial
  size_t num_slow_ = 0;      // operations in a row that took much longer than before
  bool is_settled_ = false;  // nothing was left to try, and no time has been forgotten since
};

}  // namespace dmlcomm::schedule
