// MessageCost: what a message takes beyond half a round trip, for calls and waking up. Learned from
// the times of barriers, which all ranks know.
//
// Single times say little: a rank was interrupted. So the lower quartile of several
// counts, and replaces the cost in use only if it differs clearly.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <optional>

namespace dmlcomm::engine {

class MessageCost {
 public:
  // So many barriers are compared at a time.
  static constexpr size_t kBarriers = 16;

  // A barrier's rounds have taken so long each, without half a round trip. True: the cost in use
  // is another one now.
  bool add(double seconds) {
    seconds_[num_++] = std::max(seconds, kLeastSeconds);
    if (num_ < kBarriers) return false;
    num_ = 0;
    std::nth_element(seconds_.begin(), seconds_.begin() + kBarriers / 4, seconds_.end());
    const double found = seconds_[kBarriers / 4];
    if (in_use_s_ && found < kClearly * *in_use_s_ && *in_use_s_ < kClearly * found) return false;
    in_use_s_ = found;
    return true;
  }

  // None before enough barriers have told it.
  std::optional<double> in_use_s() const { return in_use_s_; }

 private:
  static constexpr double kLeastSeconds = 1e-6;
  static constexpr double kClearly = 1.5;

  std::array<double, kBarriers> seconds_{};
  size_t num_ = 0;
  std::optional<double> in_use_s_;
};

}  // namespace dmlcomm::engine
