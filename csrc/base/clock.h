// Time for waiting and measuring: the steady clock, which no administrator or NTP moves.
#pragma once

#include <cstdint>

namespace dmlcomm {

constexpr int64_t kNsPerUs = 1'000;
constexpr int64_t kNsPerMs = 1'000'000;
constexpr int64_t kNsPerS = 1'000'000'000;

// Nanoseconds since an arbitrary point that is fixed while the machine runs. About 20 ns per call.
int64_t now_ns();

// A point in time until which something may take; a value, freely copied.
class Deadline {
 public:
  // Never expires.
  Deadline() = default;

  // Beyond the clock's range (292 years) it never expires; a negative duration has expired.
  static Deadline after_ns(int64_t duration_ns);
  static Deadline after_s(double duration_s);

  bool is_never() const { return time_ns_ == kNever; }
  bool expired() const { return !is_never() && expired_at(now_ns()); }
  bool expired_at(int64_t time_ns) const { return time_ns >= time_ns_; }

  // 0 when expired; INT64_MAX for never.
  int64_t remaining_ns() const;

  // For poll() and epoll_wait(): rounded up, so that the caller does not wake just before the
  // deadline and spin; 0 when expired; -1 for never; at most INT_MAX.
  int remaining_poll_ms() const;

 private:
  static constexpr int64_t kNever = INT64_MAX;
  explicit Deadline(int64_t time_ns) : time_ns_(time_ns) {}

  int64_t time_ns_ = kNever;
};

}  // namespace dmlcomm
