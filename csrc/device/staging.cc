#include "device/staging.h"

#include <algorithm>
#include <atomic>
#include <utility>

#include "base/check.h"

namespace dmlcomm::device {

// Queues and memory of the device, with the words of slots in its first page. What the device, or a
// rank that was stopped, may still use is never used again.
class Staging::Lease {
 public:
  static Result<std::shared_ptr<Lease>> take(Device& device, size_t num_queues, size_t num_slots,
                                             size_t slot_bytes) {
    auto lease = std::make_shared<Lease>(device);
    for (size_t i = 0; i < num_queues; ++i) {
      Result<Queue*> queue = device.take_queue();
      if (!queue.ok()) return queue.status();
      lease->queues_.push_back(*queue);
    }
    Result<Span> memory = device.take_memory(page_bytes() + num_slots * slot_bytes);
    if (!memory.ok()) return memory.status();
    lease->memory_ = *memory;
    for (size_t i = 0; i < num_slots; ++i) {
      std::byte* const slot = memory->data + page_bytes() + i * slot_bytes;
      lease->slots_.emplace_back(Span(slot, slot_bytes), memory->data + i * Slot::kWordsBytes);
    }
    lease->is_over_ = false;
    return lease;
  }

  explicit Lease(Device& device) : device_(device) {}
  ~Lease() {
    if (!is_over_) return;
    for (Queue* queue : queues_) device_.give_back(queue);
    if (memory_.data != nullptr) device_.give_back(memory_);
  }

  Queue& out() { return *queues_.front(); }
  Queue& in() { return *queues_.back(); }
  Slot& next() { return slots_[num_uses_++ % slots_.size()]; }
  // Nobody uses it any more.
  void set_over() { is_over_ = true; }

 private:
  Device& device_;
  std::vector<Queue*> queues_;
  Span memory_;
  std::vector<Slot> slots_;
  size_t num_uses_ = 0;
  std::atomic<bool> is_over_{true};  // before it is complete, too
};

Result<std::unique_ptr<Staging>> Staging::create(Device& device, size_t slot_bytes) {
  std::unique_ptr<Staging> staging(new Staging(device, slot_bytes));
  DMLCOMM_RETURN_IF_ERROR(staging->stages_.start());
  return staging;
}

Staging::~Staging() { stop({StatusCode::aborted, "the group was closed"}, true); }

StagedOperationPtr Staging::run(std::vector<Part> parts, uint64_t sequence) {
  if (!broken_.ok()) return ended(broken_, sequence);
  if (ring_ == nullptr) {
    auto ring = Lease::take(device_, 2, kNumSlots, slot_bytes_);
    if (!ring.ok()) return ended(ring.status(), sequence);
    ring_ = std::move(*ring);
  }
  auto operation = std::make_shared<StagedOperation>(sequence, &ring_->in());
  broken_ = submit(ring_, Line{}, parts, operation);
  return broken_.ok() ? operation : ended(broken_, sequence);
}

StagedOperationPtr Staging::run_alone(const Line& line, Part part, uint64_t sequence) {
  auto own = Lease::take(device_, 1, 1, part.bytes);
  if (!own.ok()) return ended(own.status(), sequence);
  auto operation = std::make_shared<StagedOperation>(sequence, &(*own)->in());
  operation->on_done([weak = std::weak_ptr(*own)](const Status& status) {
    const std::shared_ptr<Lease> over = weak.lock();
    if (status.ok() && over != nullptr) over->set_over();
  });
  std::vector<Part> parts;
  parts.push_back(std::move(part));
  const Status status = submit(*own, line, parts, operation);
  return status.ok() ? operation : ended(status, sequence);
}

Status Staging::submit(const std::shared_ptr<Lease>& lease, const Line& line,
                       std::vector<Part>& parts, const StagedOperationPtr& operation) {
  DMLCOMM_CHECK(!parts.empty());
  DMLCOMM_RETURN_IF_ERROR(device_.follow_caller(lease->out()));
  for (Part& part : parts) {
    Slot& slot = lease->next();
    DMLCOMM_CHECK(part.bytes <= slot.memory().bytes);
    Result<uint32_t> use = slot.submit(lease->out(), part.out, lease->in(), part.in);
    if (!use.ok()) return use.status();
    stages_.add(line, {.use = {&slot, *use, part.bytes, operation, lease},
                       .start = std::move(part.start),
                       .is_last = &part == &parts.back()});
  }
  return Status();
}

StagedOperationPtr Staging::ended(const Status& status, uint64_t sequence) {
  auto operation = std::make_shared<StagedOperation>(sequence, nullptr);
  operation->complete(status);
  return operation;
}

void Staging::stop(const Status& reason, bool is_written_to) {
  const bool is_over = stages_.drain(std::chrono::milliseconds(0));
  stages_.stop(reason);
  if (ring_ != nullptr && is_over && !is_written_to) ring_->set_over();
}

}  // namespace dmlcomm::device
