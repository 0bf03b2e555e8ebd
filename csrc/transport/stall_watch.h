// StallWatch: for how long the other kernel of a channel has confirmed none of the bytes that are
// on the way there. Asked regularly, by one thread.
#pragma once

#include <cstdint>

#include "base/clock.h"
#include "transport/channel.h"

namespace dmlcomm::transport {

// Bytes of which none is confirmed for so long are on a dead cable. The kernel repeats a lost
// packet after 200 ms, and after another 400 ms.
constexpr int64_t kStallNs = 500 * kNsPerMs;
// Where no other lane takes them, a repetition of the kernel is worth waiting for, but not the next
// one: the time between them doubles.
constexpr int64_t kOnlyStallNs = 1500 * kNsPerMs;
// A switch that schedules may hold back the bytes of an urgent class as long, for more urgent ones
// of other hosts. After this time the usual lane of the rail is asked whether the cable lives.
constexpr int64_t kAskStallNs = 100 * kNsPerMs;

class StallWatch {
 public:
  // 0 if some have been confirmed since the last call, or none is on the way.
  int64_t stalled_ns(const Channel& channel, int64_t now_ns) {
    const Channel::Flow flow = channel.flow();
    const bool has_moved = flow.confirmed_bytes != confirmed_bytes_;
    confirmed_bytes_ = flow.confirmed_bytes;
    if (!flow.some_on_the_way) since_ns_ = kNever;
    if (flow.some_on_the_way && (has_moved || since_ns_ == kNever)) since_ns_ = now_ns;
    return since_ns_ == kNever ? 0 : now_ns - since_ns_;
  }

 private:
  static constexpr int64_t kNever = INT64_MAX;

  int64_t since_ns_ = kNever;
  uint64_t confirmed_bytes_ = 0;
};

}  // namespace dmlcomm::transport
