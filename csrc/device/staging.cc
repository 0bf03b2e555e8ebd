#include "device/staging.h"

#include <algorithm>
#include <atomic>
#include <utility>

#include "base/check.h"

namespace dmlcomm::device {
namespace {

constexpr Line kCollectives{};

// The words of slots are in the first page of their memory.
size_t with_words(size_t bytes) { return page_bytes() + bytes; }

Span after_words(Span memory) { return {memory.data + page_bytes(), memory.bytes - page_bytes()}; }

}  // namespace

// A slot and a queue of one operation, until it has ended.
class Staging::OwnSlot {
 public:
  static Result<std::shared_ptr<OwnSlot>> take(Device& device, size_t bytes) {
    Result<Queue*> queue = device.take_queue();
    if (!queue.ok()) return queue.status();
    Result<Span> memory = device.take_memory(with_words(bytes));
    if (!memory.ok()) {
      device.give_back(*queue);
      return memory.status();
    }
    return std::make_shared<OwnSlot>(device, *queue, *memory);
  }

  OwnSlot(Device& device, Queue* queue, Span memory)
      : device_(device), queue_(queue), memory_(memory), slot_(after_words(memory), memory.data) {}

  // What the device, or a rank that was stopped, may still use is never used again.
  ~OwnSlot() {
    if (!is_over_) return;
    device_.give_back(queue_);
    device_.give_back(memory_);
  }

  Queue& queue() { return *queue_; }
  Slot& slot() { return slot_; }
  // The operation has succeeded, so nobody uses it any more.
  void set_over() { is_over_ = true; }

 private:
  Device& device_;
  Queue* const queue_;
  const Span memory_;
  Slot slot_;
  std::atomic<bool> is_over_{false};
};

class Staging::Ring {
 public:
  static Result<std::shared_ptr<Ring>> take(Device& device, size_t slot_bytes) {
    Result<Queue*> out = device.take_queue();
    if (!out.ok()) return out.status();
    Result<Queue*> in = device.take_queue();
    Result<Span> memory = in.ok() ? device.take_memory(with_words(kNumSlots * slot_bytes))
                                  : Result<Span>(in.status());
    if (memory.ok()) return std::make_shared<Ring>(device, *out, *in, *memory, slot_bytes);
    device.give_back(*out);
    if (in.ok()) device.give_back(*in);
    return memory.status();
  }

  Ring(Device& device, Queue* out, Queue* in, Span memory, size_t slot_bytes)
      : device_(device), out_(out), in_(in), memory_(memory) {
    const Span slots = after_words(memory);
    for (size_t i = 0; i < kNumSlots; ++i) {
      slots_.emplace_back(Span(slots.data + i * slot_bytes, slot_bytes),
                          memory.data + i * Slot::kWordsBytes);
    }
  }

  ~Ring() {
    if (!is_over_) return;
    device_.give_back(out_);
    device_.give_back(in_);
    device_.give_back(memory_);
  }

  Queue& out() { return *out_; }
  Queue& in() { return *in_; }
  Slot& next() { return slots_[num_uses_++ % kNumSlots]; }
  // Nobody uses it any more.
  void set_over() { is_over_ = true; }

 private:
  Device& device_;
  Queue* const out_;
  Queue* const in_;
  const Span memory_;
  std::vector<Slot> slots_;
  size_t num_uses_ = 0;
  std::atomic<bool> is_over_{false};
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
    Result<std::shared_ptr<Ring>> ring = Ring::take(device_, slot_bytes_);
    if (!ring.ok()) return ended(ring.status(), sequence);
    ring_ = std::move(*ring);
  }
  auto operation = std::make_shared<StagedOperation>(sequence, &ring_->in());
  broken_ = submit(parts, operation);
  return broken_.ok() ? operation : ended(broken_, sequence);
}

Status Staging::submit(std::vector<Part>& parts, const StagedOperationPtr& operation) {
  DMLCOMM_CHECK(!parts.empty());
  DMLCOMM_RETURN_IF_ERROR(device_.follow_caller(ring_->out()));
  for (Part& part : parts) {
    DMLCOMM_CHECK(part.bytes <= slot_bytes_);
    Slot& slot = ring_->next();
    Result<uint32_t> use = slot.submit(ring_->out(), part.out, ring_->in(), part.in);
    if (!use.ok()) return use.status();
    stages_.add(kCollectives, {.use = {&slot, *use, part.bytes, operation, ring_},
                               .start = std::move(part.start),
                               .is_last = &part == &parts.back()});
  }
  return Status();
}

StagedOperationPtr Staging::run_alone(const Line& line, Part part, uint64_t sequence) {
  Result<std::shared_ptr<OwnSlot>> own = OwnSlot::take(device_, part.bytes);
  if (!own.ok()) return ended(own.status(), sequence);
  auto operation = std::make_shared<StagedOperation>(sequence, &(*own)->queue());
  operation->on_done([weak = std::weak_ptr(*own)](const Status& status) {
    const std::shared_ptr<OwnSlot> over = weak.lock();
    if (status.ok() && over != nullptr) over->set_over();
  });
  const Status status = submit(*own, line, part, operation);
  return status.ok() ? operation : ended(status, sequence);
}

Status Staging::submit(const std::shared_ptr<OwnSlot>& own, const Line& line, Part& part,
                       const StagedOperationPtr& operation) {
  Queue& queue = own->queue();
  Slot& slot = own->slot();
  DMLCOMM_RETURN_IF_ERROR(device_.follow_caller(queue));
  Result<uint32_t> use = slot.submit(queue, part.out, queue, part.in);
  if (!use.ok()) return use.status();
  stages_.add(line, {.use = {&slot, *use, part.bytes, operation, own},
                     .start = std::move(part.start),
                     .is_last = true});
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
