// StagedCommunicator: a group's operations on memory of a device, by staging (staging.h).
//
// Collectives go over a communicator of their own, which the ranks meet for at the first one: the
// device decides when they start, so their order among collectives of the host differs between
// ranks. Messages go over the group's communicator, where they meet those of the host.
//
// An operation is done when the device has the results. What the device does after
// StagedOperation::end() sees them, so nobody has to wait. Where it has failed, results are bytes
// of ones; a failure that came before a call ends its operation at once, without results.
//
// Threads, order of calls and failures: as engine::Communicator. Pointers are the device's; calls
// are made with the device as the current one of the thread.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "device/staging.h"
#include "engine/communicator.h"

namespace dmlcomm::device {

class StagedCommunicator final : public engine::Communicator {
 public:
  // Meets the other ranks for a further communicator of the same group. May throw.
  using Meet = std::function<Result<std::shared_ptr<engine::Communicator>>()>;

  // How long close() waits for operations that have been called.
  static constexpr std::chrono::seconds kDrainTime{10};

  // `device` outlives it. Parts of collectives have `part_bytes`, the same on all ranks, but at
  // least kLeastBytesPerRank for each rank.
  static constexpr size_t kLeastBytesPerRank = size_t{256} << 10;
  static Result<std::shared_ptr<StagedCommunicator>> create(
      Device& device, std::shared_ptr<engine::Communicator> messages, Meet meet, size_t part_bytes);
  ~StagedCommunicator() override;

  // Meets the other ranks now and not at the first collective. Collective.
  Status meet();

  int rank() const override { return messages_->rank(); }
  int num_ranks() const override { return messages_->num_ranks(); }

  engine::OperationPtr all_reduce(void* data, size_t count, DType dtype, ReduceOp op,
                                  const engine::OpOptions& options) override;
  engine::OperationPtr reduce(const void* input, void* output, size_t count, DType dtype,
                              ReduceOp op, int root, const engine::OpOptions& options) override;
  engine::OperationPtr broadcast(Span data, int root, const engine::OpOptions& options) override;
  engine::OperationPtr all_gather(Span input, std::vector<Span> outputs,
                                  const engine::OpOptions& options) override;
  engine::OperationPtr gather(Span input, std::vector<Span> outputs, int root,
                              const engine::OpOptions& options) override;
  engine::OperationPtr scatter(std::vector<Span> inputs, Span output, int root,
                               const engine::OpOptions& options) override;
  engine::OperationPtr reduce_scatter(std::vector<Span> inputs, Span output, DType dtype,
                                      ReduceOp op, const engine::OpOptions& options) override;
  engine::OperationPtr all_to_all(std::vector<Span> inputs, std::vector<Span> outputs,
                                  const engine::OpOptions& options) override;
  engine::OperationPtr barrier(const engine::OpOptions& options) override;
  engine::OperationPtr send(Span data, int destination, uint32_t tag,
                            const engine::OpOptions& options) override;
  engine::OperationPtr recv(Span data, int source_or_any, uint32_t tag,
                            const engine::OpOptions& options) override;

  // Of operations of the group's communicator, which are those of the host.
  Status start_estimate() override { return messages_->start_estimate(); }
  Result<double> end_estimate() override { return messages_->end_estimate(); }
  bool is_estimating() const override { return messages_->is_estimating(); }

  // Collectives on the device alone.
  uint64_t sequence() const override { return sequence_.load(); }
  uint64_t number() const override { return messages_->number(); }
  void set_timeout(std::chrono::milliseconds timeout) override;
  void abort(const std::string& reason) override;
  // Lets the operations that have been called end, for kDrainTime at most; then closes both
  // communicators.
  void close() override;
  Status error() const override;
  double silent_s(int rank) const override { return messages_->silent_s(rank); }
  bool shares_memory() const override { return messages_->shares_memory(); }
  bool has_writer() const override;
  std::string description() const override { return messages_->description(); }
  // Of both communicators.
  std::vector<transport::RailCounters> rails() override;

 private:
  using Parts = std::vector<Part>;
  // The parts of a collective that goes over `host`.
  using Cut = std::function<Parts(engine::Communicator& host)>;
  using Spans = std::vector<Span>;
  // Starts a collective over `host` on what one slot holds: all inputs, and room for all outputs.
  using StartWhole =
      std::function<engine::OperationPtr(engine::Communicator& host, Spans from, Spans to)>;

  StagedCommunicator(std::unique_ptr<Staging> staging,
                     std::shared_ptr<engine::Communicator> messages, Meet meet);

  engine::OperationPtr run(const Cut& cut);
  engine::OperationPtr run_whole(const Spans& inputs, const Spans& outputs,
                                 const StartWhole& start);
  template <typename Submit>
  engine::OperationPtr in_order(Submit submit);
  engine::OperationPtr run_message(const Line& line, Part part);
  Status meet_once();
  std::shared_ptr<engine::Communicator> collectives() const;
  Status refusal() const;

  const std::unique_ptr<Staging> staging_;
  const std::shared_ptr<engine::Communicator> messages_;
  const Meet meet_;
  std::atomic<uint64_t> sequence_{0};
  std::atomic<bool> closed_{false};

  // Held while a collective is given to the device, which may wait for room there.
  std::mutex order_;
  bool has_tried_to_meet_ = false;  // guarded by order_

  mutable std::mutex collectives_mutex_;
  std::shared_ptr<engine::Communicator> collectives_;  // guarded by it; null before they have met
};

}  // namespace dmlcomm::device
