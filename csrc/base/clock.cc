#include "base/clock.h"

#include <algorithm>
#include <chrono>
#include <climits>

namespace dmlcomm {

int64_t now_ns() {
  using std::chrono::steady_clock;
  const auto since_start = steady_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(since_start).count();
}

Deadline Deadline::after_ns(int64_t duration_ns) {
  const int64_t now = now_ns();
  return duration_ns > INT64_MAX - now ? Deadline() : Deadline(now + duration_ns);
}

Deadline Deadline::after_s(double duration_s) {
  const double duration_ns = duration_s * static_cast<double>(kNsPerS);
  // The largest double below 2^63 is far below it: what passes this test converts without overflow.
  if (duration_ns >= 0x1p63) return Deadline();
  return after_ns(static_cast<int64_t>(std::max(duration_ns, -1.0)));
}

int64_t Deadline::remaining_ns() const {
  return is_never() ? kNever : std::max<int64_t>(0, time_ns_ - now_ns());
}

int Deadline::remaining_poll_ms() const {
  if (is_never()) return -1;
  const int64_t remaining = remaining_ns();
  const int64_t remaining_ms = remaining / kNsPerMs + (remaining % kNsPerMs != 0 ? 1 : 0);
  return static_cast<int>(std::min<int64_t>(remaining_ms, INT_MAX));
}

}  // namespace dmlcomm
