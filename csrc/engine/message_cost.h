// MessageCost: what a message takes beyond half a round trip, for calls and waking up. Learned from
// the times of barriers, which all ranks know.
//
// A rank that waits for a late one measures that one's lateness, and the late one, to which all
// messages have come already, measures nothing. So only barriers count that the ranks have entered
// together: the shortest time of a rank and the longest are much alike. Single ones say little as
// well, since a rank was interrupted; the lower quartile of several does. A cost is taken over if
// it differs clearly from the one in use, and if two such quartiles in a row say the same.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <optional>
#include <utility>

namespace dmlcomm::engine {

class MessageCost {
 public:
  // So many barriers have a quartile: one in four may be without an interruption.
  static constexpr size_t kBarriers = 16;

  // The ranks entered a barrier together that took the one that was first out `shortest_s`, and the
  // last one `longest_s`.
  static bool is_together(double shortest_s, double longest_s) {
    return longest_s < kTogether * shortest_s;
  }

  // The rounds of a barrier have taken so long each, without half a round trip. True: the cost in
  // use is another one now.
  bool add(double seconds) {
    seconds_[num_++] = std::max(seconds, kLeastSeconds);
    if (num_ < kBarriers) return false;
    num_ = 0;
    std::nth_element(seconds_.begin(), seconds_.begin() + kBarriers / 4, seconds_.end());
    const double found = seconds_[kBarriers / 4];
    const std::optional<double> before = std::exchange(last_found_s_, found);
    const bool is_repeated = before && are_alike(found, *before);
    if (!is_repeated || (in_use_s_ && are_alike(found, *in_use_s_))) return false;
    in_use_s_ = found;
    return true;
  }

  // None before enough barriers have told it.
  std::optional<double> in_use_s() const { return in_use_s_; }

 private:
  // A system call takes about as much, so no message takes less. Half a round trip that is too long
  // would make it negative.
  static constexpr double kLeastSeconds = 1e-6;
  // Where the times of barriers scatter by a factor of four, their quartiles do by less than this.
  static constexpr double kClearly = 2;
  // The last rank then came within half the time of a barrier behind the first one.
  static constexpr double kTogether = 1.5;

  static bool are_alike(double one, double other) {
    return one < kClearly * other && other < kClearly * one;
  }

  std::array<double, kBarriers> seconds_{};
  size_t num_ = 0;
  std::optional<double> last_found_s_;
  std::optional<double> in_use_s_;
};

}  // namespace dmlcomm::engine
