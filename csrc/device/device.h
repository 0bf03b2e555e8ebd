// Device: an accelerator whose memory the engine cannot reach, as staging (staging.h) sees it: its
// queues, which copy to and from pinned host memory, and that memory.
//
// A device keeps queues and memory that come back, and gives them out again: to make them is slow,
// and to free them would wait for work of other queues, which may wait for this very thread.
//
// Threads: any, for Device; one at a time for each Queue. Nothing waits for the device to be done.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "base/status.h"
#include "memory/span.h"

namespace dmlcomm::device {

// A 32-bit word of pinned memory. Device queues and threads of the host write how far they have
// come, and wait for it. Its values grow by less than 2^31 at a time, and wrap around.
class Word {
 public:
  explicit Word(std::byte* memory) : value_(reinterpret_cast<uint32_t*>(memory)) {}

  uint32_t* address() const { return value_; }

  // If it has, the caller sees all that was written before it was set.
  bool has_reached(uint32_t value) const {
    const uint32_t now = std::atomic_ref(*value_).load(std::memory_order_acquire);
    return static_cast<int32_t>(now - value) >= 0;
  }
  void set(uint32_t value) const {
    std::atomic_ref(*value_).store(value, std::memory_order_release);
  }

 private:
  uint32_t* value_;
};

// Work of a device that is done in order, one piece after the other. Every call adds a piece and
// returns, though it may wait for room in the queue.
class Queue {
 public:
  virtual ~Queue() = default;
  // What follows begins when `word` has reached `value`.
  virtual Status wait(Word word, uint32_t value) = 0;
  // After all before it, whose writes to pinned memory are visible then.
  virtual Status write(Word word, uint32_t value) = 0;
  // Between memory of the device and pinned memory.
  virtual Status copy(void* to, const void* from, size_t bytes) = 0;
};

class Device {
 public:
  virtual ~Device() = default;

  // A queue that nobody else has.
  Result<Queue*> take_queue();
  // It has no work left.
  void give_back(Queue* queue);

  // At least `bytes` of pinned memory, at the beginning of a page, uninitialised.
  Result<Span> take_memory(size_t bytes);
  // No queue has work left that touches it.
  void give_back(Span memory);

  // What `queue` gets from now on begins when all is done that the calling thread has given to the
  // device so far.
  virtual Status follow_caller(Queue& queue) = 0;

 protected:
  virtual Result<std::unique_ptr<Queue>> make_queue() = 0;
  // `bytes` is a multiple of the page. It stays to the end of the device.
  virtual Result<Span> make_memory(size_t bytes) = 0;

 private:
  std::mutex mutex_;
  // Guarded by mutex_.
  std::vector<std::unique_ptr<Queue>> queues_;  // all of them
  std::vector<Queue*> free_queues_;
  std::vector<Span> free_memory_;
};

}  // namespace dmlcomm::device
