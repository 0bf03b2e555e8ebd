// RecentMinimum: the least of the values that came of late.
//
// Values count for one to two windows, of time or of another count. Older ones are forgotten when a
// newer one comes, so there always is a minimum after the first value.
#pragma once

#include <algorithm>
#include <cstdint>

namespace dmlcomm::transport {

class RecentMinimum {
 public:
  explicit RecentMinimum(int64_t window) : window_(window) {}

  // `value` is more than 0, and no call is earlier than the one before.
  void add(uint32_t value, int64_t now) {
    const int64_t age = now - since_;
    if (current_ == 0 || age >= window_) {
      before_ = age < 2 * window_ ? current_ : 0;
      current_ = value;
      since_ = now;
    }
    current_ = std::min(current_, value);
  }

  // 0: none has come.
  uint32_t value() const { return before_ == 0 ? current_ : std::min(before_, current_); }

 private:
  int64_t window_;
  int64_t since_ = 0;     // when the current window began
  uint32_t current_ = 0;  // the least in it; 0: none
  uint32_t before_ = 0;   // in the window before
};

}  // namespace dmlcomm::transport
