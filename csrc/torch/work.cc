#include "torch/work.h"

#include <ATen/core/ivalue.h>

#include <algorithm>
#include <utility>

#include "torch/completion_pool.h"
#include "torch/errors.h"
#include "torch/gil.h"

namespace dmlcomm::adaptor {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

// How often a waiting thread looks for Ctrl-C.
constexpr milliseconds kInterruptPeriod{100};

// Waits for `operation` until `deadline`. Its own failure is the result, too. A wait that takes
// long is noted in `entry`.
Status wait_until(engine::Operation& operation, steady_clock::time_point deadline,
                  const FlightEntry& entry) {
  bool is_noted = false;
  while (!operation.done()) {
    const auto left = std::chrono::ceil<milliseconds>(deadline - steady_clock::now());
    if (left.count() <= 0) {
      return {StatusCode::timeout,
              "wait() gave up before the operation ended; it goes on, and may be waited for again"};
    }
    const Status status = operation.wait(std::min(left, kInterruptPeriod));
    if (operation.done()) break;
    if (!status.ok() && status.code() != StatusCode::timeout) return status;
    check_interrupts();
    if (!std::exchange(is_noted, true)) entry.add_stack();
  }
  return operation.status();
}

steady_clock::time_point deadline_after(milliseconds timeout) {
  // No timeout: the operation's own deadline ends it. A century keeps the arithmetic in range.
  if (timeout <= kNoTimeout) timeout = std::chrono::hours(24 * 365 * 100);
  return steady_clock::now() + timeout;
}

c10d::WorkResult work_result_of(const std::exception_ptr& error, const Status& status) {
  if (status.code() == StatusCode::timeout) return c10d::WorkResult::TIMEOUT;
  return error ? c10d::WorkResult::COMM_ERROR : c10d::WorkResult::SUCCESS;
}

// By which hooks know a Work; older torch has no hooks.
template <typename AnyWork>
uint64_t completion_key(const AnyWork& work) {
  if constexpr (requires { work.getCompletionKey(); }) {
    return work.getCompletionKey();
  } else {
    return 0;
  }
}

}  // namespace

Work::Work(int rank, c10d::OpType type, const char* profiling_title,
           const std::optional<std::vector<at::Tensor>>& inputs, Communicator communicator,
           CallTensors tensors)
    : c10d::Work(rank, type, profiling_title, inputs),
      communicator_(std::move(communicator)),
      tensors_(std::move(tensors)) {}

Work::~Work() {
  const bool is_done = operations_done();
  if (is_done && state_.load() == kPending && first_failure().ok()) flight_entry_.complete();
  if (is_done) return;
  complete_entry_early();
  if (device_end_ != nullptr) return;  // torch's allocator knows who uses the memory
  // Dropped while running: the engine may still read and write the tensors. They are released in
  // the pool, because the last reference to a tensor may need the GIL.
  auto tensors = std::make_shared<CallTensors>(std::move(tensors_));
  for (auto& operation : operations_) {
    operation->on_done([tensors](const Status&) mutable {
      CompletionPool::instance().submit([tensors = std::move(tensors)] {});
    });
  }
}

bool Work::needs_completion() const {
  return tensors_.needs_finish() || recordFunctionEndCallback_ != nullptr || hooks_ != nullptr;
}

void Work::watch() {
  {
    std::lock_guard lock(futures_mutex_);
    if (std::exchange(watched_, true)) return;
  }
  // One more than operations: the last reference goes at the end of this loop, so that complete()
  // cannot start while callbacks are still being registered.
  num_running_ = operations_.size() + 1;
  auto self = c10::intrusive_ptr<Work>::reclaim_copy(this);
  for (auto& operation : operations_) {
    operation->on_done([self](const Status&) {
      if (--self->num_running_ == 0) {
        CompletionPool::instance().submit([self] { self->complete(); });
      }
    });
  }
  if (--num_running_ == 0) complete();
}

bool Work::operations_done() const {
  return std::all_of(operations_.begin(), operations_.end(),
                     [](const auto& operation) { return operation->done(); });
}

const Status& Work::first_failure() const {
  static const Status ok;
  for (const auto& operation : operations_) {
    if (!operation->status().ok()) return operation->status();
  }
  return ok;
}

void Work::complete_entry_early() {
  if (flight_entry_.is_empty()) return;
  after_operations([entry = std::exchange(flight_entry_, FlightEntry())](bool has_succeeded) {
    if (has_succeeded) entry.complete();
  });
}

void Work::after_operations(std::function<void(bool)> callback) {
  struct Shared {
    std::function<void(bool)> callback;
    std::atomic<size_t> num_left;
    std::atomic<bool> has_succeeded{true};
  };
  auto shared = std::make_shared<Shared>(std::move(callback), operations_.size());
  for (auto& operation : operations_) {
    operation->on_done([shared](const Status& status) {
      if (!status.ok()) shared->has_succeeded = false;
      if (--shared->num_left == 0) shared->callback(shared->has_succeeded.load());
    });
  }
}

// The first thread that sees the last operation done enters; the others find it taken.
void Work::complete() {
  int expected = kPending;
  if (!state_.compare_exchange_strong(expected, kCompleting)) return;
  if (first_failure().ok() && tensors_.needs_finish()) {
    try {
      tensors_.finish();
    } catch (...) {
      completion_error_ = std::current_exception();
    }
  }
  const bool has_succeeded = first_failure().ok() && !completion_error_;
  if (has_succeeded) flight_entry_.complete();
  if (hooks_ != nullptr) hooks_->on_end(has_succeeded, completion_key(*this));
  end_profiler_range();
  c10::intrusive_ptr<c10::ivalue::Future> future;
  c10::intrusive_ptr<c10::ivalue::Future> result_future;
  {
    std::lock_guard lock(futures_mutex_);
    future = future_;
    result_future = result_future_;
    state_.store(kDone);
  }
  state_.notify_all();
  if (future) settle(*future);
  if (result_future) settle_result(*result_future);
}

void Work::end_profiler_range() {
  if (!recordFunctionEndCallback_) return;
  recordFunctionEndCallback_();
  recordFunctionEndCallback_ = nullptr;
}

bool Work::isCompleted() {
  if (!operations_done()) return false;
  complete();
  return state_.load() == kDone;
}

bool Work::isSuccess() const { return operations_done() && exception() == nullptr; }

std::exception_ptr Work::exception() const {
  if (!operations_done()) return nullptr;
  if (const Status& status = first_failure(); !status.ok()) return to_exception(status);
  return state_.load() == kDone ? completion_error_ : nullptr;
}

int Work::sourceRank() const {
  if (device_end_ != nullptr && !operations_.empty()) {
    const GilReleasedIfHeld released;
    throw_if_error(operations_.front()->wait(kNoTimeout));
  }
  TORCH_CHECK(!operations_.empty() && operations_.front()->done(),
              "dmlcomm: the source of a message is known only once it has arrived; wait() first");
  return operations_.front()->source_rank();
}

std::vector<at::Tensor> Work::result() {
  TORCH_CHECK(isCompleted(),
              "dmlcomm: result() of an operation that is still running; wait() first");
  return tensors_.results();
}

void Work::synchronize() { wait(kNoTimeout); }

bool Work::wait(milliseconds timeout) {
  if (device_end_ != nullptr) {
    block_stream(timeout);
    if (timeout <= kNoTimeout) return true;
  }
  const auto deadline = deadline_after(timeout);
  for (auto& operation : operations_) {
    const Status status = wait_until(*operation, deadline, flight_entry_);
    if (!operation->done()) throw_if_error(status);
  }
  complete();
  // Another thread may be at it: copies back to tensors and Futures' callbacks.
  state_.wait(kCompleting);
  throw_if_error(first_failure());
  if (completion_error_) std::rethrow_exception(completion_error_);
  return true;
}

// Throws if the operations have failed, or are going to since their group has failed.
void Work::block_stream(milliseconds timeout) {
  device_end_->block_current_stream();
  if (timeout > kNoTimeout) return;
  throw_if_error(operations_done() ? first_failure() : communicator_->error());
}

void Work::abort() { communicator_->abort("abort() of one of its operations was called"); }

c10::intrusive_ptr<c10::ivalue::Future> Work::getFuture() {
  if (device_end_ != nullptr) return future_on_device();
  return future_of(c10::ListType::create(c10::TensorType::get()), future_);
}

// Its events follow the end on the device, and so do callbacks and those who wait for it.
c10::intrusive_ptr<c10::ivalue::Future> Work::future_on_device() {
  auto future =
      c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()),
                                               std::vector<c10::Device>{device_end_->device()});
  device_end_->on_stream_after([&] { settle(*future); });
  return future;
}

c10::intrusive_ptr<c10::ivalue::Future> Work::getFutureResult() {
  return future_of(c10::IntType::get(), result_future_);
}

c10::intrusive_ptr<c10::ivalue::Future> Work::future_of(
    c10::TypePtr type, c10::intrusive_ptr<c10::ivalue::Future>& slot) {
  c10::intrusive_ptr<c10::ivalue::Future> future;
  bool made_after_completion = false;
  {
    std::lock_guard lock(futures_mutex_);
    if (slot) return slot;
    slot = c10::make_intrusive<c10::ivalue::Future>(std::move(type));
    future = slot;
    // complete() reads the slots and sets kDone under the same lock: one of us settles it.
    made_after_completion = state_.load() == kDone;
  }
  if (!made_after_completion) {
    watch();
  } else if (&slot == &future_) {
    settle(*future);
  } else {
    settle_result(*future);
  }
  return future;
}

void Work::settle(c10::ivalue::Future& future) {
  if (const auto error = exception()) {
    future.setError(error);
  } else {
    future.markCompleted(c10::IValue(tensors_.results()));
  }
}

void Work::settle_result(c10::ivalue::Future& future) {
  const auto result = work_result_of(exception(), first_failure());
  future.markCompleted(c10::IValue(static_cast<int64_t>(result)));
}

uint64_t Work::getSequencenumber() const {
  return operations_.empty() ? 0 : operations_.front()->sequence();
}

JointWork::JointWork(int rank, std::vector<c10::intrusive_ptr<c10d::Work>> parts)
    : c10d::Work(rank, c10d::OpType::COALESCED), parts_(std::move(parts)) {}

void JointWork::call_at_end(std::shared_ptr<const Hooks> hooks) {
  getFuture()->addCallback(
      [hooks = std::move(hooks), key = completion_key(*this)](c10::ivalue::Future& future) {
        hooks->on_end(!future.hasError(), key);
      });
}

bool JointWork::isCompleted() {
  return std::all_of(parts_.begin(), parts_.end(),
                     [](const auto& part) { return part->isCompleted(); });
}

bool JointWork::isSuccess() const {
  return std::all_of(parts_.begin(), parts_.end(),
                     [](const auto& part) { return part->isSuccess(); });
}

std::exception_ptr JointWork::exception() const {
  for (const auto& part : parts_) {
    if (auto error = part->exception()) return error;
  }
  return nullptr;
}

std::vector<at::Tensor> JointWork::result() {
  std::vector<at::Tensor> all;
  for (const auto& part : parts_) {
    for (auto& tensor : part->result()) all.push_back(std::move(tensor));
  }
  return all;
}

void JointWork::synchronize() { wait(kNoTimeout); }

bool JointWork::wait(milliseconds timeout) {
  const auto deadline = deadline_after(timeout);
  for (const auto& part : parts_) {
    // At least a millisecond: 0 would mean no limit.
    const auto left = std::chrono::ceil<milliseconds>(deadline - steady_clock::now());
    part->wait(timeout <= kNoTimeout ? kNoTimeout : std::max(left, milliseconds(1)));
  }
  return true;
}

void JointWork::abort() {
  for (const auto& part : parts_) part->abort();
}

c10::intrusive_ptr<c10::ivalue::Future> JointWork::getFuture() {
  c10::List<c10::intrusive_ptr<c10::ivalue::Future>> futures(
      c10::FutureType::create(c10::ListType::create(c10::TensorType::get())));
  for (const auto& part : parts_) futures.push_back(part->getFuture());
  auto all = c10::collectAll(futures);
  return all->then(
      [](c10::ivalue::Future& done) {
        std::vector<at::Tensor> tensors;
        for (const c10::IValue& part : done.value().toListRef()) {
          auto future = part.toFuture();
          for (auto& tensor : future->value().toTensorVector()) tensors.push_back(tensor);
        }
        return c10::IValue(tensors);
      },
      c10::ListType::create(c10::TensorType::get()));
}

uint64_t JointWork::getSequencenumber() const {
  return parts_.empty() ? 0 : parts_.front()->getSequencenumber();
}

}  // namespace dmlcomm::adaptor
