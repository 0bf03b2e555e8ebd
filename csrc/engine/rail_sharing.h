// RailSharing: makes large operations leave room on the rails for small ones that run beside them.
//
// A small message leaves before large ones that wait (SendOrder). But it waits for what is under
// way: the part that the lane has begun, what the kernel has taken, and what stands in the queues
// of network cards and switches, where one large message keeps the rail full. So while a small
// operation runs beside a large one, large messages have a share of the rails' rates, in small
// parts. This rank's share is enough: its peers run the same operations.
//
// Once tickets are given, nothing leaves room: send credits keep the queues short, and a training
// whose small gradients come all the time would leave its rails idle for most of it.
//
// All calls require the progress lock.
#pragma once

#include <cstdint>
#include <functional>
#include <utility>

#include "base/clock.h"
#include "engine/operation_queue.h"

namespace dmlcomm::engine {

class RailSharing {
 public:
  // `share_rails(share)` limits large messages; see Mesh::share_rails().
  RailSharing(const OperationQueue& queue, std::function<void(double)> share_rails,
              std::function<int64_t()> clock = now_ns)
      : queue_(queue), share_rails_(std::move(share_rails)), clock_(std::move(clock)) {}

  // In each step, after operations have started and ended.
  void update() {
    if (shares_ || queue_.runs_many_collectives()) look();
  }

 private:
  void look();
  void share(bool shares);

  const OperationQueue& queue_;
  const std::function<void(double)> share_rails_;
  const std::function<int64_t()> clock_;
  bool shares_ = false;
  int64_t last_needed_ns_ = 0;
};

}  // namespace dmlcomm::engine
