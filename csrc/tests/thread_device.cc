#include "tests/thread_device.h"

#include <chrono>
#include <cstring>
#include <new>
#include <utility>

#include "base/alignment.h"

namespace dmlcomm::tests {
namespace {

constexpr std::align_val_t kAlignment{4096};

// Words wake nobody. Threads that yield instead would take the cores from those that they wait for.
constexpr std::chrono::microseconds kLookAgain{20};

thread_local ThreadQueue* stream_of_thread = nullptr;

}  // namespace

ThreadDeviceState::~ThreadDeviceState() {
  for (const Span& each : memory) ::operator delete[](each.data, kAlignment);
}

ThreadQueue::ThreadQueue(std::shared_ptr<ThreadDeviceState> state)
    : state_(std::move(state)), thread_([this] { run(); }) {}

ThreadQueue::~ThreadQueue() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void ThreadQueue::call(std::function<void()> piece) {
  {
    std::lock_guard lock(mutex_);
    pieces_.push_back(std::move(piece));
  }
  changed_.notify_all();
}

void ThreadQueue::run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return stopping_ || !pieces_.empty(); });
    if (stopping_) return;
    const std::function<void()> piece = std::move(pieces_.front());
    pieces_.pop_front();
    lock.unlock();
    piece();
    lock.lock();
  }
}

Status ThreadQueue::wait(device::Word word, uint32_t value) {
  call([word, value] {
    while (!word.has_reached(value)) std::this_thread::sleep_for(kLookAgain);
  });
  return Status();
}

Status ThreadQueue::write(device::Word word, uint32_t value) {
  call([word, value] { word.set(value); });
  return Status();
}

Status ThreadQueue::copy(void* to, const void* from, size_t bytes) {
  if (state_ != nullptr && state_->fails) return {StatusCode::io_error, "the device is broken"};
  call([to, from, bytes] { std::memcpy(to, from, bytes); });
  return Status();
}

void ThreadDevice::set_stream(ThreadQueue* stream) { stream_of_thread = stream; }

Status ThreadDevice::follow_caller(device::Queue& queue) {
  if (stream_of_thread == nullptr) return Status();
  auto is_there = std::make_shared<std::atomic<bool>>(false);
  stream_of_thread->call([is_there] {
    is_there->store(true);
    is_there->notify_all();
  });
  static_cast<ThreadQueue&>(queue).call([is_there] { is_there->wait(false); });
  return Status();
}

size_t ThreadDevice::num_memories_made() {
  std::lock_guard lock(state_->mutex);
  return state_->memory.size();
}

Result<std::unique_ptr<device::Queue>> ThreadDevice::make_queue() {
  return std::unique_ptr<device::Queue>(std::make_unique<ThreadQueue>(state_));
}

Result<Span> ThreadDevice::make_memory(size_t bytes) {
  std::lock_guard lock(state_->mutex);
  state_->memory.emplace_back(::operator new[](bytes, kAlignment), bytes);
  return state_->memory.back();
}

}  // namespace dmlcomm::tests
