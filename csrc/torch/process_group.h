// ProcessGroupDmlcomm: dmlcomm as a backend of torch.distributed.
//
// Every method checks its tensors, names their memory, starts operations of one
// engine::Communicator and wraps them in a Work; no method waits for a peer except the constructors
// (create, split, merge, shrink), the first collective on a GPU, and those for which NCCL connects
// inside hosts. Operations of CUDA tensors go by staging, on one GPU per group. Threads: like the
// communicator, any thread may call anything; collectives must be started in the same order on
// every rank. Lives in process_group.cc (life cycle) and collectives.cc.
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <sys/types.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "torch/cuda_call.h"
#include "torch/flight_recorder.h"
#include "torch/hooks.h"
#include "torch/hostwise_all_reduce.h"
#include "torch/server_all_reduce.h"
#include "torch/torch_version.h"
#include "torch/work.h"

namespace dmlcomm::adaptor {

// What getBackendOptions() returns. Groups that are made of a group have what dmlcomm.Options gave
// it.
struct GroupOptions final : c10d::Backend::Options {
  using Options::Options;

  std::string algorithm;  // as given; empty: that of the configuration
  int priority = static_cast<int>(kDefaultJobPriority);
  bool is_reconfigured = false;  // reconfigure() has named its ranks
};

class ProcessGroupDmlcomm final : public c10d::Backend {
 public:
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;
  using TensorList = std::vector<at::Tensor>;

  // Meets the other ranks through `store`. Collective. Throws CommException, or KeyboardInterrupt
  // if one came while waiting. `options.global_ranks` has one entry per rank of the group. With
  // `servers`, all_reduce goes there.
  static c10::intrusive_ptr<ProcessGroupDmlcomm> create(
      c10::intrusive_ptr<c10d::Store> store, engine::CommunicatorOptions options,
      std::shared_ptr<ServerAllReduce> servers = nullptr);

  // Without ranks until reconfigure(): nobody is met, and operations fail.
  static c10::intrusive_ptr<ProcessGroupDmlcomm> create_unformed(
      c10::intrusive_ptr<c10d::Store> store, engine::CommunicatorOptions options);

  ProcessGroupDmlcomm(Communicator communicator, engine::CommunicatorOptions options,
                      std::shared_ptr<ServerAllReduce> servers,
                      c10::intrusive_ptr<c10d::Store> store);
  ~ProcessGroupDmlcomm() override;

  // Closes every living group of this process; the interpreter's exit calls it.
  static void close_all();

  // From any thread. Throws AbortedError before the first reconfigure().
  Communicator communicator() const;

  // At once after it was made.
  void set_given_options(std::string algorithm, int priority);

  const std::string getBackendName() const override { return "dmlcomm"; }
  c10::intrusive_ptr<Options> getBackendOptions() override { return backend_options_; }
  bool supportsSplitting() const override { return true; }
  bool supportsCoalescing() const override { return true; }
  void setTimeout(std::chrono::milliseconds timeout) override;
  uint64_t getSequenceNumberForGroup() override;
  // Of all its operations.
  std::vector<transport::RailCounters> rails() const;
  void setSequenceNumberForGroup() override {}
  // The first failure, which ends all operations; or ok.
  Status error() const;
  c10d::ErrorType getError() override;
  void abort() override;
  void abort(const std::string& reason);
  void shutdown() override;

  c10::intrusive_ptr<Backend> split(const c10::intrusive_ptr<c10d::Store>& store,
                                    const std::vector<int>& ranks,
                                    const c10::intrusive_ptr<Options>& options) override;
  c10::intrusive_ptr<Backend> merge(const c10::intrusive_ptr<c10d::Store>& store,
                                    const c10::intrusive_ptr<Options>& options, const int& rank,
                                    const int& size) override;

  // Between these two, operations that this thread calls do nothing: the second one returns the
  // microseconds that they would take, one after the other, without copies of CUDA tensors.
  bool supportsTimeEstimation() const override { return true; }

  // Between these two, operations start at once and are waited for together.
  void startCoalescing() override;
  WorkPtr endCoalescing() override;

  WorkPtr broadcast(TensorList& tensors, const c10d::BroadcastOptions& options) override;
  WorkPtr allreduce(TensorList& tensors, const c10d::AllreduceOptions& options) override;
  WorkPtr allreduce_sparse(TensorList& tensors, const c10d::AllreduceOptions& options) override;
  WorkPtr allreduce_coalesced(TensorList& tensors,
                              const c10d::AllreduceCoalescedOptions& options) override;
  WorkPtr reduce(TensorList& tensors, const c10d::ReduceOptions& options) override;
  WorkPtr allgather(std::vector<TensorList>& outputs, TensorList& inputs,
                    const c10d::AllgatherOptions& options) override;
  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input,
                          const c10d::AllgatherOptions& options) override;
  WorkPtr allgather_coalesced(std::vector<TensorList>& outputs, TensorList& inputs,
                              const c10d::AllgatherOptions& options) override;
  WorkPtr allgather_into_tensor_coalesced(TensorList& outputs, TensorList& inputs,
                                          const c10d::AllgatherOptions& options) override;
  WorkPtr gather(std::vector<TensorList>& outputs, TensorList& inputs,
                 const c10d::GatherOptions& options) override;
  WorkPtr scatter(TensorList& outputs, std::vector<TensorList>& inputs,
                  const c10d::ScatterOptions& options) override;
  WorkPtr reduce_scatter(TensorList& outputs, std::vector<TensorList>& inputs,
                         const c10d::ReduceScatterOptions& options) override;
  WorkPtr _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                               const c10d::ReduceScatterOptions& options) override;
  WorkPtr reduce_scatter_tensor_coalesced(TensorList& outputs, TensorList& inputs,
                                          const c10d::ReduceScatterOptions& options) override;
  WorkPtr alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_splits,
                        std::vector<int64_t>& input_splits,
                        const c10d::AllToAllOptions& options) override;
  WorkPtr alltoall(TensorList& outputs, TensorList& inputs,
                   const c10d::AllToAllOptions& options) override;
  WorkPtr send(TensorList& tensors, int destination, int tag) override;
  WorkPtr recv(TensorList& tensors, int source, int tag) override;
  WorkPtr recvAnysource(TensorList& tensors, int tag) override;
  WorkPtr barrier(const c10d::BarrierOptions& options) override;

// Newer base classes declare these; without `override` they compile against the older ones, too.
#pragma GCC diagnostic push
#ifdef __clang__
#pragma GCC diagnostic ignored "-Winconsistent-missing-override"
#endif
  WorkPtr gather_into_tensor(at::Tensor& output, at::Tensor& input,
                             const c10d::GatherOptions& options);

  void startTimeEstimate();
  float endTimeEstimate();

  bool supportsShrinking() const { return true; }
  // A group of the other ranks, who all call this with the same `excluded`, and meet through the
  // store of this group. Those may be dead, and this group may have failed. With torch's flag
  // SHRINK_ABORT this group is aborted first.
  c10::intrusive_ptr<Backend> shrink(const std::vector<int64_t>& excluded, int flags,
                                     const c10::intrusive_ptr<Options>& options);

  // Work that begins from now on gets so much more time, until the first of it has ended.
  void addEphemeralTimeout(const std::chrono::milliseconds& timeout);

  // Torch 2.15 and later: groups whose ranks change, and hooks.
#ifdef C10D_BACKEND_HAS_RECONFIGURE
  bool supportsReconfigure() const override { return true; }
  // Names this group of this process. Constant.
  c10d::ReconfigureHandle get_reconfigure_handle() const override { return handle_; }
  // The group has these members from now on, who all call this with the same options, and meet at
  // the store of the first one: a TCPStore, or one that all share. Operations under way end with
  // AbortedError. Returns when all have met; while it runs, torch calls nothing else than abort()
  // and shutdown().
  WorkPtr reconfigure(const c10d::ReconfigureOptions& options) override;
#endif
#if DMLCOMM_HAS_HOOKS
  bool supportsAbortHooks() const override { return true; }
  void registerAbortHook(int64_t id, c10d::AbortHook hook) override;
  void unregisterAbortHook(int64_t id) override { hooks_->remove_abort(id); }
  bool supportsCompletionHooks() const override { return true; }
  void registerCompletionHook(int64_t id, c10d::CompletionHook hook) override;
  void unregisterCompletionHook(int64_t id) override { hooks_->remove_completion(id); }
#endif
#pragma GCC diagnostic pop

 private:
  // Decisions at the start of every call.
  struct Call {
    c10d::OpType type;
    const char* title;  // of the profiler range
    engine::OpOptions options;
    int peer;       // of a message; kAnySource: any
    bool blocking;  // the caller waits at once, and wants no Work inside a coalesced block
    engine::Communicator* communicator;
    std::unique_ptr<CudaCall> cuda;  // null: the tensors are the host's
  };

  // `like` is one of the tensors, which are all on one device; undefined where there are none.
  template <typename TorchOptions>
  Call begin(c10d::OpType type, const char* title, const TorchOptions& options,
             const at::Tensor& like);
  void go_to_device_of(const at::Tensor& like, Call& call);

  c10::intrusive_ptr<Work> make_work(const Call& call, CallTensors tensors,
                                     const TensorList& inputs);

  // Hands the Work out: to the caller, or to the coalesced block that is open.
  WorkPtr finish(const Call& call, c10::intrusive_ptr<Work> work);

  bool servers_take(const TensorList& tensors, const c10d::ReduceOp& op) const;
  WorkPtr allreduce_through_servers(const Call& call, const TensorList& tensors,
                                    const c10d::ReduceOp& op);
  WorkPtr allreduce_flattened(const Call& call, const TensorList& tensors,
                              const c10d::ReduceOp& op);
  WorkPtr start_hostwise(const Call& call, HostwiseAllReduce& hostwise, CallTensors buffers,
                         const TensorList& flat, const TensorList& inputs,
                         const c10d::ReduceOp& op);
  WorkPtr allreduce_sparse_by_host(TensorList& tensors, const c10d::AllreduceOptions& options);
  WorkPtr start_send_or_recv(c10d::OpType type, const char* title, TensorList& tensors, int peer,
                             int tag);
  bool is_estimating() const;
  Reduction reduction_for(const at::Tensor& tensor, const c10d::ReduceOp& op,
                          const char* operation) const;
  int check_rank(int64_t rank, const char* operation, const char* name) const;
  c10::intrusive_ptr<ProcessGroupDmlcomm> create_descendant(c10::intrusive_ptr<c10d::Store> store,
                                                            engine::CommunicatorOptions options);
  engine::CommunicatorOptions options_of_part(const std::vector<int>& ranks) const;
  engine::CommunicatorOptions options_with_strangers(int rank, int size) const;
  Communicator communicator_or_null() const;
  using Staged = std::shared_ptr<device::StagedCommunicator>;
  Staged staged_or_null() const;
  // That all operations go over: the staged one, which aborts and closes the group's, too, if there
  // is one.
  Communicator outermost_or_null() const;
  Staged staged_on(c10::Device device);
  using Hostwise = std::shared_ptr<HostwiseAllReduce>;
  Hostwise hostwise_or_null() const;
  // Null where every rank stages what it has by itself. Meets the other ranks once.
  Hostwise hostwise_for(const Call& call, const TensorList& tensors, const c10d::ReduceOp& op);
  Hostwise meet_hostwise_on(c10::Device device);
  void expect_end_of_extensions(Work& work);

  // Null before the first reconfigure(), which alone changes it, with communicator_mutex_. Threads
  // that may run beside that take the mutex, too.
  Communicator communicator_;
  mutable std::mutex communicator_mutex_;
  // Made by the first call with CUDA tensors. Guarded by communicator_mutex_.
  Staged staged_;
  std::optional<c10::Device> staged_device_;
  // Held while ranks meet for it: before communicator_mutex_, and before Python's lock.
  std::mutex hostwise_meeting_;
  bool has_met_hostwise_ = false;                     // guarded by hostwise_meeting_
  Hostwise hostwise_;                                 // guarded by communicator_mutex_
  engine::CommunicatorOptions communicator_options_;  // changed by reconfigure()
  const c10::intrusive_ptr<GroupOptions> backend_options_;
  const std::shared_ptr<ServerAllReduce> servers_;  // null: all_reduce is the communicator's
  const c10::intrusive_ptr<c10d::Store> store_;     // that torch has given
  c10::intrusive_ptr<c10d::Store> meeting_store_;   // of the last reconfigure(); else null
  FlightLog flight_log_;
  std::atomic<std::chrono::milliseconds> timeout_;  // of calls that name none
  const pid_t owner_;  // a forked child has no progress thread and must leave everything alone

  std::atomic<bool> coalescing_{false};
  std::mutex coalesced_mutex_;
  std::vector<WorkPtr> coalesced_;  // guarded by coalesced_mutex_
  std::atomic<int> num_shrinks_{0};
  const std::shared_ptr<Hooks> hooks_ = std::make_shared<Hooks>();
  const std::string handle_;
  std::set<int64_t> uuids_;  // of earlier reconfigurations

  // Of addEphemeralTimeout(); shared with the Work that ends it.
  struct Extension {
    std::chrono::milliseconds timeout;
    bool has_work = false;
  };
  struct Extensions {
    std::atomic<int64_t> total_ms{0};
    std::mutex mutex;
    std::vector<std::shared_ptr<Extension>> active;  // guarded by mutex
  };
  const std::shared_ptr<Extensions> extensions_ = std::make_shared<Extensions>();
};

}  // namespace dmlcomm::adaptor
