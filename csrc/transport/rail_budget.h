// RailBudget: the bytes of large messages that may leave over one rail, while they leave room for
// small ones. A bucket of tokens: it fills with a share of the rail's rate, holds what comes in
// kBurstNs, and a frame may leave while there is any.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "base/clock.h"

namespace dmlcomm::transport {

class RailBudget {
 public:
  // From now on `bytes_per_second`; 0: without a limit.
  void limit(double bytes_per_second) { bytes_per_second_ = bytes_per_second; }
  bool is_limited() const { return bytes_per_second_ > 0; }
  // The most that a frame of a large message should have, of at most `most` without a limit.
  size_t frame_bytes(size_t most) const {
    if (!is_limited()) return most;
    const auto bytes = static_cast<size_t>(bytes_per_second_ * kFrameNs / kNsPerS);
    return std::min(most, std::max(bytes, kLeastFrameBytes));
  }

  // Takes a frame of `bytes`, or refuses it for now.
  bool take(size_t bytes, int64_t now_ns) {
    if (!is_limited()) return true;
    const auto passed_s = static_cast<double>(now_ns - filled_ns_) / kNsPerS;
    const double most = bytes_per_second_ * kBurstNs / kNsPerS;
    bytes_ = std::min(bytes_ + bytes_per_second_ * passed_s, most);
    filled_ns_ = now_ns;
    if (bytes_ <= 0) return false;
    bytes_ -= static_cast<double>(bytes);
    return true;
  }

 private:
  // Lanes ask every millisecond (Mesh::sleep), or later where other processes have the core.
  static constexpr int64_t kBurstNs = 2 * kNsPerMs;

  // A small message waits for the frame that has begun; but each costs a system call.
  static constexpr int64_t kFrameNs = kNsPerMs / 2;
  static constexpr size_t kLeastFrameBytes = 16 * 1024;

  double bytes_per_second_ = 0;
  double bytes_ = 0;
  int64_t filled_ns_ = 0;
};

}  // namespace dmlcomm::transport
