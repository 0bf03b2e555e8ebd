// A device whose queues are threads and whose memory is the host's.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "device/device.h"

namespace dmlcomm::tests {

// What a device and its queues share, and keep until the last of them is gone.
struct ThreadDeviceState {
  ~ThreadDeviceState();

  std::atomic<bool> fails{false};  // the device takes no further copies
  std::mutex mutex;
  std::vector<Span> memory;  // guarded by mutex
};

class ThreadQueue final : public device::Queue {
 public:
  // Without a state it is a stream of its caller, of no device.
  explicit ThreadQueue(std::shared_ptr<ThreadDeviceState> state = nullptr);
  // Ends with the piece that it is at.
  ~ThreadQueue() override;

  Status wait(device::Word word, uint32_t value) override;
  Status write(device::Word word, uint32_t value) override;
  Status copy(void* to, const void* from, size_t bytes) override;

  // Anything else, after what it has got before.
  void call(std::function<void()> piece);

 private:
  void run();

  const std::shared_ptr<ThreadDeviceState> state_;

  std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by mutex_.
  std::deque<std::function<void()>> pieces_;
  bool stopping_ = false;

  std::thread thread_;  // last: it uses the others
};

// The caller's work comes from the queue that it names, if any.
class ThreadDevice final : public device::Device {
 public:
  // Of the calling thread, from now on: queues follow what `stream` has got before each call.
  static void set_stream(ThreadQueue* stream);

  Status follow_caller(device::Queue& queue) override;

  // From now on the device takes no further copies.
  void fail_copies() { state_->fails.store(true); }
  size_t num_memories_made();

 protected:
  Result<std::unique_ptr<device::Queue>> make_queue() override;
  Result<Span> make_memory(size_t bytes) override;

 private:
  const std::shared_ptr<ThreadDeviceState> state_ = std::make_shared<ThreadDeviceState>();
};

}  // namespace dmlcomm::tests
