#include "engine/rail_sharing.h"

namespace dmlcomm::engine {
namespace {

// What large messages have of a rail beside small operations. Half, so that an operation which has
// small ones beside it all the time takes twice as long at most.
constexpr double kShare = 0.5;
// After the end of a small operation. Where the next one follows soon, queues that took time to
// drain stay short.
constexpr int64_t kHoldNs = 30 * kNsPerMs;

}  // namespace

void RailSharing::update() {
  if (queue_.runs_small_beside_large()) {
    last_needed_ns_ = clock_();
    share(true);
  } else if (shares_) {
    share(queue_.runs_large() && clock_() - last_needed_ns_ < kHoldNs);
  }
}

void RailSharing::share(bool shares) {
  if (std::exchange(shares_, shares) != shares) share_rails_(shares ? kShare : 1);
}

}  // namespace dmlcomm::engine
