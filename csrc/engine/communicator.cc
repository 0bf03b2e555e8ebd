#include "engine/communicator.h"

#include <algorithm>
#include <cstring>
#include <thread>
#include <utility>

#include "base/log.h"
#include "engine/completion.h"
#include "engine/engine.h"
#include "kernels/reduce.h"

namespace dmlcomm::engine {
namespace {

using schedule::OpKind;

constexpr uint64_t kMaxRanks = 1u << 20;

std::vector<uint64_t> sizes_of(const std::vector<Span>& spans) {
  std::vector<uint64_t> sizes;
  for (const Span& span : spans) sizes.push_back(span.bytes);
  return sizes;
}

template <typename... Text>
Status wrong(const Text&... text) {
  return Status(StatusCode::invalid_argument, text...);
}

// An operation that was only priced.
class Estimated final : public Completion {
 public:
  explicit Estimated(const Status& status) { complete(status); }
  uint64_t sequence() const override { return 0; }
};

// The communicator's face: checks arguments, and turns each call into an OpRequest.
class CommunicatorImpl final : public Communicator {
 public:
  explicit CommunicatorImpl(std::shared_ptr<Engine> engine)
      : engine_(std::move(engine)), timeout_ms_(engine_->options().timeout.count()) {}

  ~CommunicatorImpl() override { close(); }

  int rank() const override { return engine_->options().rank; }
  int num_ranks() const override { return engine_->options().num_ranks; }

  OperationPtr all_reduce(void* data, size_t count, DType dtype, ReduceOp op,
                          const OpOptions& options) override {
    OpRequest request = reduction(OpKind::all_reduce, dtype, op);
    request.shape.counts = {count};
    request.output = BufferView(Span{data, count * size_of(dtype)});
    return submit(std::move(request), options);
  }

  OperationPtr reduce(const void* input, void* output, size_t count, DType dtype, ReduceOp op,
                      int root, const OpOptions& options) override {
    OpRequest request = reduction(OpKind::reduce, dtype, op);
    request.shape.counts = {count};
    request.input = BufferView(Span{input, count * size_of(dtype)});
    if (rank() == root) request.output = BufferView(Span{output, count * size_of(dtype)});
    return submit_rooted(std::move(request), root, options);
  }

  OperationPtr broadcast(Span data, int root, const OpOptions& options) override {
    OpRequest request = movement(OpKind::broadcast);
    request.shape.counts = {data.bytes};
    request.output = BufferView(data);
    return submit_rooted(std::move(request), root, options);
  }

  OperationPtr all_gather(Span input, std::vector<Span> outputs,
                          const OpOptions& options) override {
    OpRequest request = movement(OpKind::all_gather);
    request.shape.counts = sizes_of(outputs);
    request.input = BufferView(input);
    request.output = BufferView(outputs);
    const Status status = check_own_piece(outputs.size(), input.bytes, request.shape.counts);
    return status.ok() ? submit(std::move(request), options) : ended(std::move(request), status);
  }

  OperationPtr gather(Span input, std::vector<Span> outputs, int root,
                      const OpOptions& options) override {
    OpRequest request = movement(OpKind::gather);
    request.shape.counts.assign(static_cast<size_t>(num_ranks()), input.bytes);
    request.input = BufferView(input);
    if (rank() == root) {
      request.shape.counts = sizes_of(outputs);
      request.output = BufferView(outputs);
      const Status status = check_own_piece(outputs.size(), input.bytes, request.shape.counts);
      if (!status.ok()) return ended(std::move(request), status);
    }
    return submit_rooted(std::move(request), root, options);
  }

  OperationPtr scatter(std::vector<Span> inputs, Span output, int root,
                       const OpOptions& options) override {
    OpRequest request = movement(OpKind::scatter);
    request.shape.counts.assign(static_cast<size_t>(num_ranks()), output.bytes);
    request.output = BufferView(output);
    if (rank() == root) {
      request.shape.counts = sizes_of(inputs);
      request.input = BufferView(inputs);
      const Status status = check_own_piece(inputs.size(), output.bytes, request.shape.counts);
      if (!status.ok()) return ended(std::move(request), status);
    }
    return submit_rooted(std::move(request), root, options);
  }

  OperationPtr reduce_scatter(std::vector<Span> inputs, Span output, DType dtype, ReduceOp op,
                              const OpOptions& options) override {
    OpRequest request = reduction(OpKind::reduce_scatter, dtype, op);
    Status status = check_own_piece(inputs.size(), output.bytes, sizes_of(inputs));
    for (const Span& input : inputs) {
      if (input.bytes % size_of(dtype) != 0) {
        status = wrong("reduce_scatter: an input of ", input.bytes, " bytes is no multiple of ",
                       to_string(dtype));
      }
      request.shape.counts.push_back(input.bytes / size_of(dtype));
    }
    request.input = BufferView(inputs);
    request.output = BufferView(output);
    return status.ok() ? submit(std::move(request), options) : ended(std::move(request), status);
  }

  OperationPtr all_to_all(std::vector<Span> inputs, std::vector<Span> outputs,
                          const OpOptions& options) override {
    OpRequest request = movement(OpKind::all_to_all);
    request.shape.counts = sizes_of(inputs);
    request.shape.recv_counts = sizes_of(outputs);
    request.input = BufferView(inputs);
    request.output = BufferView(outputs);
    const auto n = static_cast<size_t>(num_ranks());
    if (inputs.size() != n || outputs.size() != n) {
      return ended(std::move(request),
                   wrong("all_to_all: ", inputs.size(), " inputs and ", outputs.size(),
                         " outputs, expected ", n, " of each (one per rank)"));
    }
    const auto own = static_cast<size_t>(rank());
    if (inputs[own].bytes != outputs[own].bytes) {
      return ended(std::move(request),
                   wrong("all_to_all: rank ", rank(), " sends itself ", inputs[own].bytes,
                         " bytes and expects ", outputs[own].bytes));
    }
    return submit(std::move(request), options);
  }

  OperationPtr barrier(const OpOptions& options) override {
    return submit(movement(OpKind::barrier), options);
  }

  OperationPtr send(Span data, int destination, uint32_t tag, const OpOptions& options) override {
    OpRequest request = movement(OpKind::send);
    request.input = BufferView(data);
    return submit_message(std::move(request), destination, tag, options);
  }

  OperationPtr recv(Span data, int source_or_any, uint32_t tag, const OpOptions& options) override {
    OpRequest request = movement(OpKind::recv);
    request.output = BufferView(data);
    return submit_message(std::move(request), source_or_any, tag, options);
  }

  Status start_estimate() override {
    std::thread::id nobody;
    if (estimating_.compare_exchange_strong(nobody, std::this_thread::get_id())) return Status();
    return wrong("start of an estimate: another one of this group has not ended");
  }

  Result<double> end_estimate() override {
    if (!is_estimating()) return wrong("end of an estimate that this thread has not started");
    const double seconds = std::exchange(estimated_s_, 0);
    estimating_.store({});
    return seconds;
  }

  bool is_estimating() const override { return estimating_.load() == std::this_thread::get_id(); }

  uint64_t sequence() const override { return engine_->sequence(); }
  uint64_t number() const override { return engine_->number(); }
  void set_timeout(std::chrono::milliseconds timeout) override {
    timeout_ms_.store(timeout.count());
  }
  void abort(const std::string& reason) override { engine_->abort(reason); }
  void close() override { engine_->close(); }
  Status error() const override { return engine_->error(); }
  double silent_s(int rank) const override { return engine_->silent_s(rank); }
  bool shares_memory() const override { return engine_->shares_memory(); }
  bool has_writer() const override { return engine_->has_writer(); }
  std::string description() const override { return engine_->description(); }
  std::vector<transport::RailCounters> rails() override { return engine_->rails(); }

 private:
  OpRequest movement(OpKind kind) const {
    OpRequest request;
    request.shape.kind = kind;
    request.shape.rank = static_cast<uint32_t>(rank());
    request.shape.num_ranks = static_cast<uint32_t>(num_ranks());
    return request;
  }

  OpRequest reduction(OpKind kind, DType dtype, ReduceOp op) const {
    OpRequest request = movement(kind);
    request.dtype = dtype;
    request.reduce_op = op;
    request.shape.element_bytes = static_cast<uint32_t>(size_of(dtype));
    return request;
  }

  Status check_own_piece(size_t num_pieces, size_t own_bytes,
                         const std::vector<uint64_t>& sizes) const {
    if (num_pieces != static_cast<size_t>(num_ranks())) {
      return wrong("got ", num_pieces, " tensors on rank ", rank(), ", expected ", num_ranks(),
                   " (one per rank)");
    }
    if (sizes[static_cast<size_t>(rank())] == own_bytes) return Status();
    return wrong("piece ", rank(), " has ", sizes[static_cast<size_t>(rank())], " bytes, but rank ",
                 rank(), "'s own tensor has ", own_bytes);
  }

  OperationPtr ended(OpRequest request, const Status& status) {
    return engine_->finished(std::move(request), status);
  }

  Deadline deadline_of(const OpOptions& options) const {
    const int64_t ms = options.timeout.count() > 0 ? options.timeout.count() : timeout_ms_.load();
    return Deadline::after_ns(ms > INT64_MAX / kNsPerMs ? INT64_MAX : ms * kNsPerMs);
  }

  OperationPtr submit(OpRequest request, const OpOptions& options) {
    request.element = options.element;
    request.ticket = options.ticket;
    if (request.reduces() && !kernels::supports(request.dtype, request.reduce_op)) {
      const Status status = wrong(to_string(request.shape.kind), ": ", to_string(request.reduce_op),
                                  " is not defined for ", to_string(request.dtype));
      return ended(std::move(request), status);
    }
    if (is_estimating()) return estimated(request);
    if (num_ranks() == 1) {
      const Status error = engine_->error();
      if (error.ok()) run_alone(request);
      return ended(std::move(request), error);
    }
    return engine_->submit(std::move(request), deadline_of(options), options.inline_wait);
  }

  OperationPtr submit_rooted(OpRequest request, int root, const OpOptions& options) {
    if (root < 0 || root >= num_ranks()) {
      const Status status = wrong(to_string(request.shape.kind), ": root ", root,
                                  " is not a rank of this group (0 to ", num_ranks() - 1, ")");
      return ended(std::move(request), status);
    }
    request.shape.root = static_cast<uint32_t>(root);
    return submit(std::move(request), options);
  }

  OperationPtr submit_message(OpRequest request, int peer, uint32_t tag, const OpOptions& options) {
    const bool any = peer == kAnySource && request.shape.kind == OpKind::recv;
    if (!any && (peer < 0 || peer >= num_ranks())) {
      const Status status = wrong(to_string(request.shape.kind), ": ", peer,
                                  " is not a rank of this group (0 to ", num_ranks() - 1, ")");
      return ended(std::move(request), status);
    }
    request.peer = peer;
    request.tag = tag;
    request.ticket = options.ticket;
    if (is_estimating()) return estimated(request);
    return engine_->submit(std::move(request), deadline_of(options), options.inline_wait);
  }

  // It has no place among the operations of the group, which other ranks do not start.
  OperationPtr estimated(const OpRequest& request) {
    const Result<double> seconds = engine_->estimate(request);
    if (seconds.ok()) estimated_s_ += *seconds;
    return std::make_shared<Estimated>(seconds.status());
  }

  // A group of one: results are copies of the inputs.
  static void run_alone(const OpRequest& request) {
    const size_t bytes = request.output.bytes();
    if (bytes == 0 || request.input.bytes() == 0) return;
    std::byte* to = request.output.at(0, bytes);
    const std::byte* from = request.input.at(0, bytes);
    if (to != from) std::memmove(to, from, bytes);
  }

  const std::shared_ptr<Engine> engine_;
  std::atomic<int64_t> timeout_ms_;
  std::atomic<std::thread::id> estimating_{};  // this thread; none: nobody
  double estimated_s_ = 0;                     // of that thread
};

Status check_options(const CommunicatorOptions& options) {
  const auto n = static_cast<uint64_t>(options.num_ranks);
  if (options.num_ranks < 1 || n > kMaxRanks || options.rank < 0 ||
      options.rank >= options.num_ranks) {
    return wrong("rank ", options.rank, " of ", options.num_ranks,
                 " ranks: expected 0 <= rank < number of ranks <= ", kMaxRanks);
  }
  if (!options.names.empty() && options.names.size() != n) {
    return wrong("got ", options.names.size(), " names for ", n, " ranks");
  }
  if (!options.global_ranks.empty() && options.global_ranks.size() != n) {
    return wrong("got ", options.global_ranks.size(), " global ranks for ", n, " ranks");
  }
  const auto& rates = options.rail_rates_bps;
  if (std::find(rates.begin(), rates.end(), 0u) != rates.end()) {
    return wrong("a rail has a rate of 0 bits per second; leave out what is not known");
  }
  return Status();
}

}  // namespace

Result<std::shared_ptr<Communicator>> Communicator::create(
    const CommunicatorOptions& options, std::shared_ptr<transport::Rendezvous> rendezvous) {
  DMLCOMM_RETURN_IF_ERROR(check_options(options));
  if (!options.config && !process_config().ok()) return process_config().status();
  CommunicatorOptions complete = options;
  if (!options.config) complete.config = *process_config();
  Result<std::shared_ptr<Engine>> engine = Engine::create(std::move(complete), *rendezvous);
  if (!engine.ok()) {
    return Status(engine.status().code(), "group '", options.name, "', rank ", options.rank, ": ",
                  engine.status().message());
  }
  if (options.names.empty()) {
    const auto own = static_cast<size_t>(options.rank);
    set_log_identity(options.global_ranks.empty() ? options.rank : options.global_ranks[own],
                     (*engine)->host_name());
  }
  log_info((*engine)->description());
  return std::shared_ptr<Communicator>(std::make_shared<CommunicatorImpl>(std::move(*engine)));
}

}  // namespace dmlcomm::engine
