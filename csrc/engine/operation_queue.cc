#include "engine/operation_queue.h"

#include <algorithm>

#include "base/str_cat.h"

namespace dmlcomm::engine {
namespace {

// Tensors of all collectives that run. Several buckets of DDP fit, which is enough to fill the gaps
// that one leaves; early data of all of them may lie in windows.
constexpr size_t kMaxRunningBytes = 128u << 20;

size_t bytes_of(const OpRequest& request) { return request.input.bytes() + request.output.bytes(); }

// One writes what the other uses.
bool collide(const OpRequest& a, const OpRequest& b) {
  return a.output.overlaps(b.output) || a.output.overlaps(b.input) || a.input.overlaps(b.output);
}

}  // namespace

std::shared_ptr<OpState> OperationQueue::submit(Driver* driver, OpRequest request,
                                                Deadline deadline) {
  const bool is_collective = !request.is_point_to_point();
  std::unique_lock lock(mutex_);
  const uint64_t sequence =
      is_collective ? last_sequence_.fetch_add(1, std::memory_order_relaxed) + 1 : 0;
  auto op = std::make_shared<OpState>(driver, std::move(request), sequence, deadline);
  if (error_.ok()) {
    submitted_.push_back(op);
    num_pending_.fetch_add(1, std::memory_order_relaxed);
    has_submitted_.store(true, std::memory_order_release);
    return op;
  }
  const Status error(error_.code(), str_cat(op->text(), " cannot run: ", error_.message()));
  lock.unlock();
  op->complete(error);
  return op;
}

std::shared_ptr<OpState> OperationQueue::finished(Driver* driver, OpRequest request,
                                                  const Status& status) {
  const uint64_t sequence = request.is_point_to_point() ? 0 : ++last_sequence_;
  auto op = std::make_shared<OpState>(driver, std::move(request), sequence, Deadline());
  op->complete(status);
  return op;
}

bool OperationQueue::set_error(const Status& status) {
  std::lock_guard lock(mutex_);
  if (!error_.ok()) return false;
  error_ = status;
  return true;
}

Status OperationQueue::error() const {
  std::lock_guard lock(mutex_);
  return error_;
}

// With the lock, not by the flag alone: a thread that sleeps after this has missed nothing.
bool OperationQueue::has_submitted() const {
  std::lock_guard lock(mutex_);
  return !submitted_.empty();
}

bool OperationQueue::take_submitted() {
  if (!has_submitted_.load(std::memory_order_acquire)) return false;
  std::vector<std::shared_ptr<OpState>> taken;
  Status error;
  {
    std::lock_guard lock(mutex_);
    taken.swap(submitted_);
    error = error_;
    has_submitted_.store(false, std::memory_order_relaxed);
  }
  for (std::shared_ptr<OpState>& op : taken) {
    const bool is_message = op->request().is_point_to_point();
    auto& list = is_message ? messages_ : collectives_;
    auto& next = is_message ? next_message_ : next_collective_;
    const uint64_t sequence = op->sequence();
    const auto added = list.insert(list.end(), {sequence, std::move(op), nullptr});
    if (next == list.end()) next = added;
    if (!is_message) last_taken_ = sequence;
    if (!error.ok()) end(*added, error);
  }
  return true;
}

bool OperationQueue::may_start(const Running& next, uint64_t window) const {
  if (num_running_ == 0) return window > 0;
  const OpRequest& request = next.op->request();
  if (next.sequence - oldest_collective() >= window) return false;
  if (running_bytes_ + bytes_of(request) > kMaxRunningBytes) return false;
  return std::none_of(collectives_.begin(), std::list<Running>::const_iterator(next_collective_),
                      [&](const Running& running) {
                        return running.op != nullptr && collide(running.op->request(), request);
                      });
}

const OpState* OperationQueue::next_collective() {
  while (next_collective_ != collectives_.end() && next_collective_->op == nullptr) {
    ++next_collective_;
  }
  return next_collective_ == collectives_.end() ? nullptr : next_collective_->op.get();
}

OperationQueue::Running* OperationQueue::next_to_start(uint64_t window) {
  while (next_message_ != messages_.end()) {
    Running& next = *next_message_++;
    if (next.op != nullptr) return &next;
  }
  if (next_collective() == nullptr) return nullptr;
  if (!may_start(*next_collective_, window)) return nullptr;
  ++num_running_;
  running_bytes_ += bytes_of(next_collective_->op->request());
  return &*next_collective_++;
}

void OperationQueue::end(Running& running, const Status& status) {
  if (running.op == nullptr) return;
  if (running.runner != nullptr && !running.op->request().is_point_to_point()) {
    --num_running_;
    running_bytes_ -= bytes_of(running.op->request());
  }
  ended_.push_back({std::move(running.op), status});
  running.op = nullptr;
  if (status.ok()) running.runner.reset();
  swept_ = false;
}

void OperationQueue::sweep() {
  if (std::exchange(swept_, true)) return;
  const auto sweep_list = [](std::list<Running>& list, std::list<Running>::iterator& next) {
    for (auto it = list.begin(); it != list.end();) {
      if (it->op != nullptr) {
        ++it;
        continue;
      }
      if (it == next) ++next;
      it = list.erase(it);
    }
  };
  sweep_list(collectives_, next_collective_);
  sweep_list(messages_, next_message_);
}

void OperationQueue::report_ended(std::unique_lock<std::mutex>& progress_lock) {
  const auto ended = std::exchange(ended_, {});
  num_pending_.fetch_sub(static_cast<uint32_t>(ended.size()), std::memory_order_release);
  progress_lock.unlock();
  for (const auto& [op, status] : ended) op->complete(status);
}

void OperationQueue::clear() {
  collectives_.clear();
  messages_.clear();
  next_collective_ = collectives_.end();
  next_message_ = messages_.end();
}

}  // namespace dmlcomm::engine
