// HostwiseAllReduce: all_reduce of CUDA tensors where every host has as many ranks of the group, at
// least two, each with a GPU of its own. GPUs of a host combine what they have by torch's NCCL, and
// each sends a shard of it to other hosts. 2 hosts, 2 GPUs each:
//
// clang-format off
//     rank 0: a b   reduce-scatter   a01       all_reduce   a0123      all-gather    a0123 b0123
//     rank 1: a b   inside hosts         b01   of shards         b0123 inside hosts  a0123 b0123
//     rank 2: a b                    a23       between      a0123                    a0123 b0123
//     rank 3: a b                        b23   hosts             b0123               a0123 b0123
// clang-format on
//
// Both groups are c10d's backends: `inside` of the ranks of this host, `across` of the ranks at
// this one's place on all hosts, which is dmlcomm's and goes by staging. The parts follow each
// other on one stream of the device, and so do operations; no call waits for it. An average is one
// of averages.
//
// Elements that are no multiple of the host's GPUs go with the last one's shard.
//
// A thread looks when operations have ended, whether the group or one of these two has failed, and
// whether time is over: then all of them are aborted. NCCL's ranks on a host wait for each other on
// the GPU alone, so this is what lets them go.
//
// Threads: any. Calls that start operations come in the same order on all ranks.
#pragma once

#include <ATen/ATen.h>
#include <c10/core/Stream.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "torch/cuda_call.h"

namespace dmlcomm::adaptor {

class HostwiseAllReduce {
 public:
  using BackendPtr = c10::intrusive_ptr<c10d::Backend>;

  // The two groups; `inside` is null where the group's tensors are staged by every rank for itself,
  // `across` where one host has all ranks.
  struct Groups {
    BackendPtr inside;
    BackendPtr across;
  };

  // How long close() waits for operations that have been called.
  static constexpr std::chrono::seconds kDrainTime{10};

  // Whether NCCL has this. The same on all ranks, which agree on tensors and operators.
  static bool can_reduce(const at::Tensor& tensor, const c10d::ReduceOp& op);

  // `group` has all ranks, and fails with the others. An operation without a timeout has `timeout`.
  static std::shared_ptr<HostwiseAllReduce> create(c10::Device device, Groups groups,
                                                   Communicator group,
                                                   std::chrono::milliseconds timeout);
  HostwiseAllReduce(c10::Device device, Groups groups, Communicator group,
                    std::chrono::milliseconds timeout);
  ~HostwiseAllReduce();
  HostwiseAllReduce(const HostwiseAllReduce&) = delete;
  HostwiseAllReduce& operator=(const HostwiseAllReduce&) = delete;

  // The operation, and where it ends on the device. Tensors are plain, of one dimension, and kept
  // by the caller. Begins after what the current stream has. Between hosts it fails when it has
  // taken `timeout` (0: the default) there, and as a whole after twice that, from when the device
  // has come to it; inside one host after `timeout`.
  struct Started {
    engine::OperationPtr operation;
    std::unique_ptr<DeviceEnd> end;
  };
  Started start(const std::vector<at::Tensor>& tensors, const c10d::ReduceOp& op,
                std::chrono::milliseconds timeout);

  const BackendPtr& across() const { return across_; }
  uint64_t sequence() const { return sequence_.load(); }
  void set_timeout(std::chrono::milliseconds timeout);  // the default

  // Ends all operations with `reason`, also those of the group. Idempotent.
  void abort(const Status& reason);

  // Lets operations end, for kDrainTime at most; then closes both groups. Idempotent.
  void close();

 private:
  class Pending;

  Status enter(const std::shared_ptr<Pending>& pending);
  void reduce(Pending& pending, const at::Tensor& whole, const c10d::ReduceOp& op,
              std::chrono::milliseconds timeout);
  void reduce_by_shards(Pending& pending, const at::Tensor& whole, const c10d::ReduceOp& op,
                        std::chrono::milliseconds timeout);
  Status failure() const;
  Status failure_inside() const;
  Status failure_elsewhere() const;
  void watch();
  void end_all(const Status& status);
  Status first_reason();

  const c10::Device device_;
  const c10::Stream stream_;
  const BackendPtr inside_;
  const BackendPtr across_;
  const Communicator group_;
  std::atomic<uint64_t> sequence_{0};
  std::atomic<std::chrono::milliseconds> timeout_;

  std::mutex order_;  // held while an operation is given to the device; before mutex_

  std::mutex mutex_;  // held for short times
  std::condition_variable changed_;
  // Guarded by mutex_.
  std::list<std::shared_ptr<Pending>> pending_;  // none comes after an abort
  Status reason_;                                // of the first abort
  bool closed_ = false;
  bool stopping_ = false;
  std::thread watcher_;  // constant after create()
};

// Asks Python which ranks of a group are on which host, with what GPU, and makes both groups.
// Collective. Throws what create() of a group throws, on all ranks if one of them fails
// before NCCL connects; from then on it waits as NCCL does.
HostwiseAllReduce::Groups meet_hostwise(
    c10::Device device, const engine::CommunicatorOptions& options,
    const c10::intrusive_ptr<c10d::Store>& store, const Communicator& group,
    const std::function<HostwiseAllReduce::BackendPtr(const std::vector<int>& ranks)>& make_across);

}  // namespace dmlcomm::adaptor
