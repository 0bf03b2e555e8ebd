// Work: the result of a c10d call, over one or several operations of the engine.
//
// The plain case allocates nothing beyond itself: wait() drives the operations. Costlier parts are
// attached only on demand: a Future at the first getFuture(), copies back to tensors that were
// staged, the end of a profiler range. With any of those, complete() runs exactly once after the
// last operation, in the thread that waits, or in the CompletionPool if nobody does.
//
// On a device, wait() lets the current stream wait and returns; with a timeout it waits for the
// device, too. The Future is completed at once; its events come later. They follow the copies back,
// too. An operation that fails later leaves NaN, and fails
// the next wait() of its group.
//
// Threads: all methods from any thread. wait() must be called without the GIL (torch's bindings
// release it). A Work may be dropped while it runs; its tensors stay alive until the engine is
// done.
#pragma once

#include <c10/util/SmallVector.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include <atomic>
#include <chrono>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "engine/communicator.h"
#include "torch/cuda_call.h"
#include "torch/flight_recorder.h"
#include "torch/hooks.h"
#include "torch/tensors.h"

namespace dmlcomm::adaptor {

class Work final : public c10d::Work {
 public:
  // `profiling_title` is null when nobody profiles; else `inputs` are shown with the range.
  Work(int rank, c10d::OpType type, const char* profiling_title,
       const std::optional<std::vector<at::Tensor>>& inputs, Communicator communicator,
       CallTensors tensors);
  ~Work() override;

  // Adds an operation; before the Work is handed out.
  void add(engine::OperationPtr operation) { operations_.push_back(std::move(operation)); }

  // What torch's flight recorder shows of it: completed when the caller has waited.
  void set_flight_entry(FlightEntry entry) { flight_entry_ = entry; }

  // They hear of its end, once. Before the Work is handed out.
  void set_hooks(std::shared_ptr<const Hooks> hooks) { hooks_ = std::move(hooks); }

  // Of a call on a device, after the last add(): wait() and the Future follow its end there.
  void follow(const CudaCall& call) {
    if (device_end_ == nullptr) device_end_ = call.end(operations_, tensors_);
  }
  // The same where operations have `end`.
  void follow(const CudaCall& call, std::unique_ptr<DeviceEnd> end) {
    device_end_ = call.end(std::move(end), tensors_);
  }

  // Calls `callback` when the last operation ends, on the thread that ends it, and says whether all
  // have succeeded. After the last add().
  void after_operations(std::function<void(bool)> callback);

  // Completed already when the last operation ends, for callers that may be elsewhere meanwhile.
  // After the last add().
  void complete_entry_early();

  // Makes complete() happen although nobody waits. Idempotent.
  void watch();

  // Whether something is left to do after the last operation.
  bool needs_completion() const;

  bool isCompleted() override;
  bool isSuccess() const override;
  std::exception_ptr exception() const override;
  int sourceRank() const override;
  std::vector<at::Tensor> result() override;
  void synchronize() override;
  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
  void abort() override;
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
  c10::intrusive_ptr<c10::ivalue::Future> getFutureResult() override;
  uint64_t getSequencenumber() const override;

 private:
  enum State : int { kPending, kCompleting, kDone };

  bool operations_done() const;
  // The first operation's failure, or ok. Only once all are done.
  const Status& first_failure() const;
  void complete();
  void end_profiler_range();
  c10::intrusive_ptr<c10::ivalue::Future> future_of(c10::TypePtr type,
                                                    c10::intrusive_ptr<c10::ivalue::Future>& slot);
  void settle(c10::ivalue::Future& future);
  void settle_result(c10::ivalue::Future& future);
  void block_stream(std::chrono::milliseconds timeout);
  c10::intrusive_ptr<c10::ivalue::Future> future_on_device();

  // Constant once the Work is handed out.
  const Communicator communicator_;
  c10::SmallVector<engine::OperationPtr, 1> operations_;

  std::shared_ptr<const Hooks> hooks_;  // null: nobody asks

  std::unique_ptr<DeviceEnd> device_end_;  // null: the tensors are the host's

  FlightEntry flight_entry_;  // empty where the operations complete it

  // Touched by complete() only, after that constant.
  CallTensors tensors_;
  std::exception_ptr completion_error_;

  std::atomic<int> state_{kPending};
  std::atomic<size_t> num_running_{0};

  // Guarded by futures_mutex_. A leaf lock: nothing is called under it.
  std::mutex futures_mutex_;
  bool watched_ = false;
  c10::intrusive_ptr<c10::ivalue::Future> future_;
  c10::intrusive_ptr<c10::ivalue::Future> result_future_;
};

// JointWork: the calls between startCoalescing() and endCoalescing() as one.
class JointWork final : public c10d::Work {
 public:
  JointWork(int rank, std::vector<c10::intrusive_ptr<c10d::Work>> parts);

  // These hear of its end, as they hear of those of its parts.
  void call_at_end(std::shared_ptr<const Hooks> hooks);

  bool isCompleted() override;
  bool isSuccess() const override;
  std::exception_ptr exception() const override;
  std::vector<at::Tensor> result() override;
  void synchronize() override;
  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
  void abort() override;
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
  uint64_t getSequencenumber() const override;

 private:
  const std::vector<c10::intrusive_ptr<c10d::Work>> parts_;
};

}  // namespace dmlcomm::adaptor
