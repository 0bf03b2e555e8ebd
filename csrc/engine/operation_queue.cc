#include "engine/operation_queue.h"

#include <algorithm>

#include "base/check.h"
#include "base/str_cat.h"
#include "transport/link.h"

namespace dmlcomm::engine {
namespace {

// Collectives that run at once, of those with the same ticket or smaller ones: enough to hide the
// waits of small ones behind each other.
constexpr size_t kMaxRunning = 8;
// Tensors of these. Several buckets of DDP fit, which is enough to fill the gaps that one leaves;
// early data of all of them may lie in windows.
constexpr size_t kMaxRunningBytes = 128u << 20;
// Tensors of all collectives that run, but for the oldest.
constexpr size_t kMaxBytesBesideOldest = 2 * kMaxRunningBytes;

// Of those that wait, the first so many and the oldest are looked at.
constexpr size_t kMaxTried = 8;

size_t bytes_of(const OpRequest& request) { return request.input.bytes() + request.output.bytes(); }

// That of its messages, as far as ticket and size go.
transport::SendOrder order_of(const OpState& op) {
  const size_t bytes = std::max(op.request().input.bytes(), op.request().output.bytes());
  return {.ticket = op.ticket(), .is_large = bytes > transport::kEagerBytes};
}

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
  auto op =
      std::make_shared<OpState>(driver, std::move(request), sequence, ++num_submitted_, deadline);
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
  auto op = std::make_shared<OpState>(driver, std::move(request), sequence, 0, Deadline());
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

bool OperationQueue::take_what_is_submitted() {
  Status error;
  {
    std::lock_guard lock(mutex_);
    if (taken_.empty()) {  // else an exception has left some of them
      taken_.swap(submitted_);
      has_submitted_.store(false, std::memory_order_relaxed);
    }
    error = error_;
  }
  for (std::shared_ptr<OpState>& op : taken_) {
    if (op == nullptr) continue;
    const bool is_message = op->request().is_point_to_point();
    auto& list = is_message ? messages_ : collectives_;
    auto& next = is_message ? next_message_ : next_to_plan_;
    const auto added = list.emplace(list.end());
    added->sequence = op->sequence();
    added->op = std::move(op);
    added->place = added;
    added->is_message = is_message;
    if (next == list.end()) next = added;
    has_tickets_ |= added->op->ticket() != kDefaultTicket;
    if (!is_message) {
      last_taken_ = added->sequence;
      hurry_those_before(*added);
    }
    if (!error.ok()) end(*added, error);
  }
  taken_.clear();
  return true;
}

// Those whose end it needs, and in turn those whose end these need. What has started keeps its
// ticket: the messages of an operation leave in the order of its schedule.
void OperationQueue::hurry_those_before(Running& added) {
  if (!has_tickets_) return;
  const uint8_t ticket = added.op->ticket();
  std::vector<const OpRequest*> needed{&added.op->request()};
  for (auto it = std::prev(collectives_.end()); it != collectives_.begin();) {
    --it;
    if (it->op == nullptr || it->has_started) continue;
    const OpRequest& request = it->op->request();
    const auto needs = [&](const OpRequest* one) { return collide(*one, request); };
    if (std::none_of(needed.begin(), needed.end(), needs)) continue;
    it->op->hurry(ticket);
    may_have_startable_ = true;
    needed.push_back(&request);
  }
}

OperationQueue::Running* OperationQueue::next_to_plan() {
  while (next_to_plan_ != collectives_.end() && next_to_plan_->op == nullptr) ++next_to_plan_;
  return next_to_plan_ == collectives_.end() ? nullptr : &*next_to_plan_;
}

void OperationQueue::planned(Running& running) {
  DMLCOMM_CHECK(&running == &*next_to_plan_);
  ++next_to_plan_;
  may_have_startable_ = true;
}

OperationQueue::Running* OperationQueue::next_by_ticket(const Running* last) {
  const auto place = [](const Running& r) { return std::pair(r.op->ticket(), r.sequence); };
  Running* found = nullptr;
  for (auto it = collectives_.begin(); it != next_to_plan_; ++it) {
    if (it->op == nullptr || it->has_started) continue;
    if (last != nullptr && place(*it) <= place(*last)) continue;
    if (found == nullptr || place(*it) < place(*found)) found = &*it;
  }
  return found;
}

OperationQueue::Running* OperationQueue::oldest() {
  const auto it = std::find_if(collectives_.begin(), collectives_.end(),
                               [](const Running& running) { return running.op != nullptr; });
  return it == collectives_.end() ? nullptr : &*it;
}

bool OperationQueue::may_start(const Running& next) {
  const Running* const oldest = this->oldest();
  if (&next == oldest) return true;
  const OpRequest& request = next.op->request();
  size_t num_as_urgent = 0, num_beside_oldest = 0;
  size_t bytes_as_urgent = bytes_of(request), bytes_beside_oldest = bytes_of(request);
  for (auto it = collectives_.begin(); it != next_to_plan_; ++it) {
    const Running& other = *it;
    if (other.op == nullptr || &other == &next) continue;
    if (other.sequence < next.sequence && collide(other.op->request(), request)) return false;
    if (!other.has_started) continue;
    const size_t bytes = bytes_of(other.op->request());
    if (&other != oldest) {
      ++num_beside_oldest;
      bytes_beside_oldest += bytes;
    }
    if (other.op->ticket() <= next.op->ticket()) {
      ++num_as_urgent;
      bytes_as_urgent += bytes;
    }
  }
  return num_as_urgent < kMaxRunning &&
         (num_as_urgent == 0 || bytes_as_urgent <= kMaxRunningBytes) &&
         (num_beside_oldest == 0 || bytes_beside_oldest <= kMaxBytesBesideOldest);
}

OperationQueue::Running* OperationQueue::next_message() {
  while (next_message_ != messages_.end()) {
    Running& next = *next_message_++;
    if (next.op != nullptr) return &next;
  }
  return nullptr;
}

bool OperationQueue::waits_for_earlier(uint64_t sequence) const {
  const auto found = std::find_if(collectives_.begin(), collectives_.end(),
                                  [&](const Running& r) { return r.sequence == sequence; });
  if (found == collectives_.end() || found->op == nullptr) return false;
  return std::any_of(collectives_.begin(), found, [&](const Running& earlier) {
    return earlier.op != nullptr && collide(earlier.op->request(), found->op->request());
  });
}

OperationQueue::Running* OperationQueue::begin(Running* collective) {
  collective->has_started = true;
  ++num_running_;
  note_orders();
  return collective;
}

OperationQueue::Running* OperationQueue::start(uint64_t sequence) {
  Running* const found = find_if([&](const Running& r) { return r.sequence == sequence; });
  if (found == nullptr) return nullptr;
  DMLCOMM_CHECK(found->algorithm != nullptr && !found->has_started);
  return begin(found);
}

OperationQueue::Running* OperationQueue::next_to_start() {
  if (Running* message = next_message()) return message;
  if (!may_have_startable_) return nullptr;
  Running* next = next_by_ticket(nullptr);
  for (size_t i = 1; next != nullptr && !may_start(*next); ++i) {
    next = i < kMaxTried ? next_by_ticket(next) : nullptr;
  }
  if (next == nullptr) {
    Running* const oldest = this->oldest();
    const bool may_run = oldest != nullptr && !oldest->has_started && oldest != next_to_plan();
    next = may_run ? oldest : nullptr;
  }
  may_have_startable_ = next != nullptr;
  if (next == nullptr) return nullptr;
  return begin(next);
}

void OperationQueue::note_orders() {
  small_ = large_ = transport::kSendLast;
  for (auto it = collectives_.begin(); it != next_to_plan_; ++it) {
    if (it->op == nullptr || !it->has_started) continue;
    const transport::SendOrder order = order_of(*it->op);
    transport::SendOrder& first = order.is_large ? large_ : small_;
    first = std::min(first, order);
  }
}

void OperationQueue::end(Running& running, const Status& status) {
  if (running.op == nullptr) return;
  // What may throw, where there is no memory, comes first.
  if (to_sweep_.size() == to_sweep_.capacity()) to_sweep_.reserve(2 * to_sweep_.size() + 1);
  ended_.emplace_back(running.op, status);
  to_sweep_.push_back(running.place);
  if (running.has_started) --num_running_;
  may_have_startable_ = true;
  running.op = nullptr;
  if (!running.is_message) note_orders();
  if (status.ok()) running.runner.reset();
}

void OperationQueue::drop_ended() {
  for (const auto place : to_sweep_) {
    auto& list = place->is_message ? messages_ : collectives_;
    auto& next = place->is_message ? next_message_ : next_to_plan_;
    if (place == next) ++next;
    list.erase(place);
  }
  to_sweep_.clear();
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
  to_sweep_.clear();
  next_to_plan_ = collectives_.end();
  next_message_ = messages_.end();
}

}  // namespace dmlcomm::engine
