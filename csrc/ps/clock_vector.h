// ClockVector: the clocks of all workers of a model.
//
// An expected worker that has not come yet counts with clock 0: nothing is applied without it. A
// worker that has left or was lost does not count until it attaches again.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>

#include "base/check.h"

namespace dmlcomm::ps {

constexpr uint32_t kMaxWorkers = 4096;
// Proxies have the numbers from here on, by their place in the tree. They have no clocks.
constexpr uint32_t kFirstProxy = kMaxWorkers;
constexpr uint32_t kMaxProxies = 4096;
constexpr bool is_proxy(uint32_t number) { return number >= kFirstProxy; }
constexpr uint64_t kGone = UINT64_MAX;

class ClockVector {
 public:
  // Workers 0 to num_expected - 1 are expected at `first_clock`.
  ClockVector(uint32_t num_expected, uint64_t first_clock)
      : clocks_(std::make_unique<std::atomic<uint64_t>[]>(kMaxWorkers)),
        reached_(std::make_unique<std::atomic<uint64_t>[]>(kMaxWorkers)),
        num_known_(num_expected),
        highest_(first_clock) {
    DMLCOMM_CHECK(num_expected <= kMaxWorkers);
    for (uint32_t worker = 0; worker < kMaxWorkers; ++worker) {
      clocks_[worker].store(worker < num_expected ? first_clock : kGone);
    }
  }

  void set(uint32_t worker, uint64_t clock) {
    clocks_[worker].store(clock);
    if (clock == kGone) return;
    reached_[worker].store(clock);
    raise_highest(clock);
    uint32_t known = num_known_.load();
    while (known <= worker && !num_known_.compare_exchange_weak(known, worker + 1)) {
    }
  }

  // Raises the clock at which the next worker begins if none counts.
  void raise_highest(uint64_t clock) {
    uint64_t highest = highest_.load();
    while (highest < clock && !highest_.compare_exchange_weak(highest, clock)) {
    }
  }

  uint64_t get(uint32_t worker) const { return clocks_[worker].load(); }
  // The worker's last clock, also once it has gone; 0 for a worker that never came.
  uint64_t reached(uint32_t worker) const { return reached_[worker].load(); }
  // All workers have smaller numbers.
  uint32_t num_known() const { return num_known_.load(); }

  // The smallest clock; worker w counts with at_least(w) if that is more. If no worker counts, the
  // highest clock that any has reached, at which the next worker begins.
  template <typename AtLeast>
  uint64_t min(AtLeast at_least) const {
    uint64_t smallest = kGone;
    const uint32_t known = num_known();
    for (uint32_t worker = 0; worker < known; ++worker) {
      const uint64_t clock = get(worker);
      if (clock == kGone) continue;
      const uint64_t closed = at_least(worker);
      smallest = std::min(smallest, clock > closed ? clock : closed);
    }
    return smallest == kGone ? highest_.load() : smallest;
  }

  uint32_t num_counting() const {
    uint32_t num = 0;
    for (uint32_t worker = 0; worker < num_known(); ++worker) num += get(worker) != kGone;
    return num;
  }

 private:
  std::unique_ptr<std::atomic<uint64_t>[]> clocks_;
  std::unique_ptr<std::atomic<uint64_t>[]> reached_;
  std::atomic<uint32_t> num_known_;
  std::atomic<uint64_t> highest_;
};

}  // namespace dmlcomm::ps
