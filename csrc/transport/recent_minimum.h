// RecentMinimum: the least of the values that came of late.
//
// Values count for one to two windows of time. Older ones are forgotten when a newer one comes, so
// there always is a minimum after the first value.
#pragma once

#include <algorithm>
#include <cstdint>

namespace dmlcomm::transport {

class RecentMinimum {
 public:
  explicit RecentMinimum(int64_t window_ns) : window_ns_(window_ns) {}

  // `value` is more than 0, and no call is earlier than the one before.
  void add(uint32_t value, int64_t now_ns) {
    const int64_t age_ns = now_ns - since_ns_;
    if (current_ == 0 || age_ns >= window_ns_) {
      before_ = age_ns < 2 * window_ns_ ? current_ : 0;
      current_ = value;
      since_ns_ = now_ns;
    }
    current_ = std::min(current_, value);
  }

  // 0: none has come.
  uint32_t value() const { return before_ == 0 ? current_ : std::min(before_, current_); }

 private:
  int64_t window_ns_;
  int64_t since_ns_ = 0;  // when the current window began
  uint32_t current_ = 0;  // the least in it; 0: none
  uint32_t before_ = 0;   // in the window before
};

}  // namespace dmlcomm::transport
