#include "device/device.h"

#include <utility>

#include "base/alignment.h"

namespace dmlcomm::device {

Result<Queue*> Device::take_queue() {
  std::lock_guard lock(mutex_);
  if (free_queues_.empty()) {
    Result<std::unique_ptr<Queue>> made = make_queue();
    if (!made.ok()) return made.status();
    queues_.push_back(std::move(*made));
    return queues_.back().get();
  }
  Queue* const queue = free_queues_.back();
  free_queues_.pop_back();
  return queue;
}

void Device::give_back(Queue* queue) {
  std::lock_guard lock(mutex_);
  free_queues_.push_back(queue);
}

// The smallest that fits, unless it is more than twice as large.
Result<Span> Device::take_memory(size_t bytes) {
  std::lock_guard lock(mutex_);
  auto best = free_memory_.end();
  for (auto it = free_memory_.begin(); it != free_memory_.end(); ++it) {
    const bool fits = it->bytes >= bytes && it->bytes / 2 <= bytes;
    if (fits && (best == free_memory_.end() || it->bytes < best->bytes)) best = it;
  }
  if (best == free_memory_.end()) return make_memory(round_up(bytes, page_bytes()));
  const Span memory = *best;
  free_memory_.erase(best);
  return memory;
}

void Device::give_back(Span memory) {
  std::lock_guard lock(mutex_);
  free_memory_.push_back(memory);
}

}  // namespace dmlcomm::device
