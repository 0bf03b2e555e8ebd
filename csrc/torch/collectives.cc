// ProcessGroupDmlcomm's operations: convert, start, wrap.
#include <algorithm>
#include <numeric>

#include "kernels/reduce.h"
#include "torch/current_ticket.h"
#include "torch/process_group.h"
#include "torch/sparse.h"

namespace dmlcomm::adaptor {
namespace {

using OpType = c10d::OpType;

// all_reduce_coalesced sends lists up to this size as one message: below it the cost of a message
// outweighs that of copying twice.
constexpr size_t kFlattenBytes = 1u << 20;

// Tags with this bit are the adaptor's own.
constexpr int64_t kMaxTag = 0x7fffffff;

// Whether the caller waits at once. Older torch has no such field in some of the structs.
template <typename TorchOptions>
bool is_blocking(const TorchOptions& options) {
  if constexpr (requires { options.asyncOp; }) {
    return !options.asyncOp;
  } else {
    return false;
  }
}

void scale(void* destination, Span source, const Reduction& reduction) {
  kernels::scale(destination, source.data, source.bytes / size_of(reduction.dtype), reduction.dtype,
                 *reduction.factor);
}

// The values that enter the reduction: the tensor's memory, or for PREMUL_SUM a scaled copy.
Span reduction_input(CallTensors& tensors, const at::Tensor& tensor, const Reduction& reduction) {
  if (reduction.factor && tensor.is_cuda()) {
    return tensors.read(scaled_on_device(tensor, *reduction.factor));
  }
  const Span span = tensors.read(tensor);
  if (!reduction.factor) return span;
  auto scaled =
      at::empty(tensor.sizes(), tensor.options().memory_format(at::MemoryFormat::Contiguous));
  scale(scaled.mutable_data_ptr(), span, reduction);
  tensors.keep(scaled);
  return {scaled.const_data_ptr(), span.bytes};
}

Span update_for_reduction(CallTensors& tensors, const at::Tensor& tensor,
                          const Reduction& reduction) {
  if (reduction.factor && tensor.is_cuda()) {
    const at::Tensor scaled = scaled_on_device(tensor, *reduction.factor);
    tensors.copy_back(scaled, tensor);
    tensors.add_result(tensor);
    return writable(scaled);
  }
  const Span span = tensors.update(tensor);
  if (reduction.factor) scale(span.data, span, reduction);
  return span;
}

std::vector<Span> read_all(CallTensors& tensors, const std::vector<at::Tensor>& list) {
  std::vector<Span> spans;
  spans.reserve(list.size());
  for (const auto& tensor : list) spans.push_back(tensors.read(tensor));
  return spans;
}

std::vector<Span> write_all(CallTensors& tensors, const std::vector<at::Tensor>& list) {
  std::vector<Span> spans;
  spans.reserve(list.size());
  for (const auto& tensor : list) spans.push_back(tensors.write(tensor));
  return spans;
}

void check_counts(size_t outputs, size_t inputs, const char* operation) {
  TORCH_CHECK_VALUE(inputs > 0 && outputs == inputs, "dmlcomm ", operation,
                    ": expected as many outputs as inputs and at least one, got ", outputs,
                    " outputs and ", inputs, " inputs");
}

// Rows of dimension 0 per rank: as given, or equal parts.
std::vector<int64_t> row_splits(const at::Tensor& tensor, const std::vector<int64_t>& splits,
                                int num_ranks, const char* argument) {
  const int64_t rows = tensor.dim() == 0 ? 1 : tensor.size(0);
  if (splits.empty()) {
    TORCH_CHECK_VALUE(rows % num_ranks == 0, "dmlcomm all_to_all: dimension 0 of the ", argument,
                      " (", rows, ") does not divide by the ", num_ranks,
                      " ranks; pass split sizes for uneven parts");
    return std::vector<int64_t>(static_cast<size_t>(num_ranks), rows / num_ranks);
  }
  TORCH_CHECK_VALUE(splits.size() == static_cast<size_t>(num_ranks),
                    "dmlcomm all_to_all: expected ", num_ranks, " split sizes for the ", argument,
                    ", one for each rank, got ", splits.size());
  const bool negative = std::any_of(splits.begin(), splits.end(), [](int64_t n) { return n < 0; });
  const int64_t sum = std::accumulate(splits.begin(), splits.end(), int64_t{0});
  TORCH_CHECK_VALUE(!negative && sum == rows, "dmlcomm all_to_all: the split sizes of the ",
                    argument, " sum to ", sum, ", but its dimension 0 is ", rows);
  return splits;
}

// The request to the parameter servers.
std::string server_op_of(const Reduction& reduction) {
  return reduction.factor ? "premul_sum" : to_string(reduction.op);
}

bool fits_one_message(const std::vector<at::Tensor>& tensors) {
  size_t bytes = 0;
  for (const auto& tensor : tensors) {
    if (tensor.scalar_type() != tensors.front().scalar_type()) return false;
    bytes += tensor.nbytes();
  }
  return tensors.size() > 1 && bytes <= kFlattenBytes;
}

}  // namespace

template <typename TorchOptions>
ProcessGroupDmlcomm::Call ProcessGroupDmlcomm::begin(OpType type, const char* title,
                                                     const TorchOptions& options,
                                                     const at::Tensor& like) {
  Call call{.type = type,
            .title = title,
            .options = {},
            .peer = engine::kAnySource,
            .blocking = is_blocking(options),
            .communicator = communicator_.get(),
            .cuda = nullptr};
  if (communicator_ == nullptr) [[unlikely]] {
    (void)communicator();  // throws
  }
  if (options.timeout.count() > 0) call.options.timeout = options.timeout;
  const int64_t extension_ms = extensions_->total_ms.load(std::memory_order_relaxed);
  if (extension_ms != 0) [[unlikely]] {
    if (call.options.timeout.count() == 0) call.options.timeout = timeout_.load();
    call.options.timeout += std::chrono::milliseconds(extension_ms);
  }
  call.options.inline_wait = call.blocking && !coalescing_.load(std::memory_order_relaxed);
  call.options.ticket = current_ticket();
  if (like.defined() && like.is_cuda() && !is_estimating()) [[unlikely]] {
    go_to_device_of(like, call);
  }
  return call;
}

void ProcessGroupDmlcomm::go_to_device_of(const at::Tensor& like, Call& call) {
  if (communicator_ == nullptr) (void)communicator();  // throws
  call.options.inline_wait = false;                    // nobody waits for what a device does
  call.cuda = std::make_unique<CudaCall>(like.device(), staged_on(like.device()));
  call.communicator = call.cuda->communicator().get();
}

// Without a factor where nothing is to be changed: the caller would scale its tensor.
Reduction ProcessGroupDmlcomm::reduction_for(const at::Tensor& tensor, const c10d::ReduceOp& op,
                                             const char* operation) const {
  Reduction reduction = reduction_of(tensor, op, operation);
  if (is_estimating()) reduction.factor.reset();
  return reduction;
}

int ProcessGroupDmlcomm::check_rank(int64_t rank, const char* operation, const char* name) const {
  TORCH_CHECK_VALUE(rank >= 0 && rank < size_, "dmlcomm ", operation, ": ", name, " ", rank,
                    " is not in the group of ", size_, " ranks");
  return static_cast<int>(rank);
}

ProcessGroupDmlcomm::WorkPtr ProcessGroupDmlcomm::broadcast(TensorList& tensors,
                                                            const c10d::BroadcastOptions& options) {
  check_list(tensors, "broadcast");
  const int root = check_rank(options.rootRank, "broadcast", "root");
  const Call call = begin(OpType::BROADCAST, "dmlcomm:broadcast", options, tensors.front());
  CallTensors buffers;
  c10::SmallVector<Span, 1> spans;
  for (const auto& tensor : tensors) {
    spans.push_back(rank_ == root ? buffers.update(tensor) : buffers.write(tensor));
  }
  auto work = make_work(call, std::move(buffers), tensors);
  for (size_t i = 0; i < spans.size(); ++i) {
    work->add(call.communicator->broadcast(spans[i], root, moving(call.options, tensors[i])));
  }
  return finish(call, std::move(work));
}

ProcessGroupDmlcomm::WorkPtr ProcessGroupDmlcomm::allreduce(TensorList& tensors,
                                                            const c10d::AllreduceOptions& options) {
  if (!tensors.empty() && tensors.front().layout() == at::kSparse) {
    return allreduce_sparse(tensors, options);
  }
  check_list(tensors, "all_reduce");
  const Call call = begin(OpType::ALLREDUCE, "dmlcomm:all_reduce", options, tensors.front());
  if (servers_take(tensors, options.reduceOp)) {
    return allreduce_through_servers(call, tensors, options.reduceOp);
  }
  if (const Hostwise hostwise = hostwise_for(call, tensors, options.reduceOp)) {
    CallTensors buffers;
    TensorList flat;
    for (const auto& tensor : tensors) flat.push_back(buffers.update_flat(tensor));
    return start_hostwise(call, *hostwise, std::move(buffers), flat, tensors, options.reduceOp);
  }
  CallTensors buffers;
  c10::SmallVector<std::pair<Span, Reduction>, 1> parts;
  for (const auto& tensor : tensors) {
    const auto reduction = reduction_for(tensor, options.reduceOp, "all_reduce");
    parts.emplace_back(update_for_reduction(buffers, tensor, reduction), reduction);
  }
  auto work = make_work(call, std::move(buffers), tensors);
  for (const auto& [span, reduction] : parts) {
    work->add(call.communicator->all_reduce(span.data, span.bytes / size_of(reduction.dtype),
                                            reduction.dtype, reduction.op, call.options));
  }
  return finish(call, std::move(work));
}

// `flat` is of `buffers`, which have the results.
ProcessGroupDmlcomm::WorkPtr ProcessGroupDmlcomm::start_hostwise(
    const Call& call, HostwiseAllReduce& hostwise, CallTensors buffers, const TensorList& flat,
    const TensorList& inputs, const c10d::ReduceOp& op) {
  auto work = make_work(call, std::move(buffers), inputs);
  auto [operation, end] = hostwise.start(flat, op, call.options.timeout);
  work->add(std::move(operation));
  work->follow(*call.cuda, std::move(end));
  return finish(call, std::move(work));
}

// A failed group is left to its communicator, whose operations end with the first error.
bool ProcessGroupDmlcomm::servers_take(const TensorList& tensors, const c10d::ReduceOp& op) const {
  if (servers_ == nullptr || tensors.front().is_cuda() || is_estimating()) return false;
  if (!communicator_->error().ok()) return false;
  return std::all_of(tensors.begin(), tensors.end(), [&](const at::Tensor& tensor) {
    return servers_->takes(server_op_of(reduction_of(tensor, op, "all_reduce")), tensor);
  });
}

ProcessGroupDmlcomm::WorkPtr ProcessGroupDmlcomm::allreduce_through_servers(
    const Call& call, const TensorList& tensors, const c10d::ReduceOp& op) {
  CallTensors buffers;
  std::vector<std::pair<at::Tensor, at::Tensor>> parts;
  for (const auto& tensor : tensors) {
    // Apart from the input: that is sent again if a server is lost.
    const auto output = at::empty({tensor.numel()}, tensor.options());
    parts.emplace_back(buffers.read_flat(tensor), output);
    buffers.copy_back(output.view(tensor.sizes()), tensor);
    buffers.add_result(tensor);
  }
  const auto reduction = reduction_for(tensors.front(), op, "all_reduce");
  auto work = make_work(call, std::move(buffers), tensors);
  for (const auto& [input, output] : parts) {
    work->add(servers_->start(server_op_of(reduction), input, output, communicator_));
  }
  return finish(call, std::move(work));
}

ProcessGroupDmlcomm::WorkPtr ProcessGroupDmlcomm::allreduce_sparse(
    TensorList& tensors, const c10d::AllreduceOptions& options) {
  TORCH_CHECK_VALUE(tensors.size() == 1, "dmlcomm all_reduce: expected one sparse tensor, got ",
                    tensors.size());
  TORCH_CHECK(!is_estimating(),
              "dmlcomm all_reduce: no estimate of sparse tensors: what they send is "
              "known only when they are");
  if (tensors.front().is_cuda()) return allreduce_sparse_by_host(tensors, options);
  check_sparse(tensors.front(), options.reduceOp);
  if (servers_) (void)servers_->takes("sum", tensors.front());  // never: for the line in the log
  const Call call = begin(OpType::_ALLREDUCE_SPARSE, "dmlcomm:sparse_all_reduce", options, {});
  auto sum = SparseSum::start(communicator_, tensors.front(), call.options);
  CallTensors buffers;
  buffers.add_result(tensors.front());
  buffers.set_finisher([sum, result = tensors.front()]() mutable { sum->store_into(result); });
  auto work = make_work(call, std::move(buffers), tensors);
  work->add(sum);
  return finish(call, std::move(work));
}

// The caller waits: sizes that are known only after a first exchange cannot be given to a device.
ProcessGroupDmlcomm::WorkPtr ProcessGroupDmlcomm::allreduce_sparse_by_host(
    TensorList& tensors, const c10d::AllreduceOptions& options) {
  TORCH_CHECK_VALUE(!coalescing_.load(),
                    "dmlcomm all_reduce: a sparse CUDA tensor in a coalesced block, which the host "
                    "has to wait for; call it outside of the block");
  const Call call = begin(OpType::_ALLREDUCE_SPARSE, "dmlcomm:sparse_all_reduce", options, {});
  at::NoGradGuard no_grad;
  TensorList on_host{tensors.front().cpu()};
  allreduce_sparse(on_host, options)->wait();
  tensors.front().copy_(on_host.front());
  CallTensors buffers;
  buffers.add_result(tensors.front());
  return finish(call, make_work(call, std::move(buffers), tensors));
}

ProcessGroupDmlcomm::WorkPtr ProcessGroupDmlcomm::allreduce_coalesced(
    TensorList& tensors, const c10d::AllreduceCoalescedOptions& options) {
  check_list(tensors, "all_reduce_coalesced");
  if (servers_ != nullptr || !fits_one_message(tensors)) return allreduce(tensors, options);
  return allreduce_flattened(
      begin(OpType::ALLREDUCE_COALESCED, "dmlcomm:all_reduce", options, tensors.front()), tensors,
      options.reduceOp);
}

ProcessGroupDmlcomm::WorkPtr ProcessGroupDmlcomm::allreduce_flattened(const Call& call,
                                                                      const TensorList& tensors,
                                                                      const c10d::ReduceOp& op) {
  at::NoGradGuard no_grad;
  int64_t count = 0;
  for (const auto& tensor : tensors) count += tensor.numel();
  const auto flat = at::empty({count}, tensors.front().options());
  CallTensors buffers;
  int64_t offset = 0;
  for (const auto& tensor : tensors) {
    auto part = flat.narrow(0, offset, tensor.numel()).view(tensor.sizes());
    part.copy_(tensor);
    buffers.copy_back(part, tensor);
    buffers.add_result(tensor);
    offset += tensor.numel();
  }
  if (const Hostwise hostwise = hostwise_for(call, tensors, op)) {
    buffers.keep(flat);
    return start_hostwise(call, *hostwise, std::move(buffers), {flat}, tensors, op);
  }
  const auto reduction = reduction_for(flat, op, "all_reduce_coalesced");
  if (reduction.factor && flat.is_cuda()) flat.copy_(scaled_on_device(flat, *reduction.factor));
  const Span span = writable(flat);
  if (reduction.factor && !flat.is_cuda()) scale(span.data, span, reduction);
  buffers.keep(flat);
  auto work = make_work(call, std::move(buffers), tensors);
  work->add(call.communicator->all_reduce(span.data, static_cast<size_t>(count), reduction.dtype,
                                          reduction.op, call.options));
  return finish(call, std::move(work));
}

ProcessGroupDmlcomm::WorkPtr ProcessGroupDmlcomm::reduce(TensorList& tensors,
                                                         const c10d::ReduceOptions& options) {
  check_list(tensors, "reduce");
  const int root = check_rank(options.rootRank, "reduce", "root");
  const Call call = begin(OpType::REDUCE, "dmlcomm:reduce", options, tensors.front());
  struct Part {
    Span input;
    void* output;
    Reduction reduction;
  };
  CallTensors buffers;
  c10::SmallVector<Part, 1> parts;
  for (const auto& tensor : tensors) {
    const auto reduction = reduction_for(tensor, options.reduceOp, "reduce");
    if (rank_ == root) {
      const Span span = update_for_reduction(buffers, tensor, reduction);
      parts.push_back({span, span.data, reduction});
    } else {
      buffers.add_result(tensor);
      parts.push_back({reduction_input(buffers, tensor, reduction), nullptr, reduction});
    }
  }
  auto work = make_work(call, std::move(buffers), tensors);
  for (const auto& [input, output, reduction] : parts) {
    work->add(call.communicator->reduce(input.data, output, input.bytes / size_of(reduction.dtype),
                                        reduction.dtype, reduction.op, root, call.options));
  }
  return finish(call, std::move(work));
}

ProcessGroupDmlcomm::WorkPtr ProcessGroupDmlcomm::allgather(std::vector<TensorList>& outputs,
                                                            TensorList& inputs,
                                                            const c10d::AllgatherOptions& options) {
  check_list(inputs, "all_gather");
  check_counts(outputs.size(), inputs.size(), "all_gather");
  const Call call = begin(OpType::ALLGATHER, "dmlcomm:all_gather", options, inputs.front());
  CallTensors buffers;
  c10::SmallVector<std::pair<Span, std::vector<Span>>, 1> parts;
  for (size_t i = 0; i < inputs.size(); ++i) {
    check_parts(outputs[i], inputs[i], size_, "all_gather", "the output list");
    check_same(outputs[i][rank_], inputs[i], 1, "all_gather");
    parts.emplace_back(buffers.read(inputs[i]), write_all(buffers, outputs[i]));
  }
  auto work = make_work(call, std::move(buffers), inputs);
  for (size_t i = 0; i < parts.size(); ++i) {
    auto& [input, spans] = parts[i];
    work->add(
        call.communicator->all_gather(input, std::move(spans), moving(call.options, inputs[i])));
  }
  return finish(call, std::move(work));
}

ProcessGroupDmlcomm::WorkPtr ProcessGroupDmlcomm::_allgather_base(
    at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& options) {
  TensorList outputs{output};
  TensorList inputs{input};
  return allgather_into_tensor_coalesced(outputs, inputs, options);
}

ProcessGroupDmlcomm::WorkPtr ProcessGroupDmlcomm::allgather_coalesced(
    std::vector<TensorList>& outputs, TensorList& inputs, const c10d::AllgatherOptions& options) {
  // Here the outer list is over ranks and the inner one over tensors; allgather() has it
  // transposed.
  TORCH_CHECK_VALUE(outputs.size() == static_cast<size_t>(size_),
                    "dmlcomm all_gather_coalesced: expected ", size_,
                    " output lists, one for each rank, got ", outputs.size());
  std::vector<TensorList> by_tensor(inputs.size());
  for (const auto& of_rank : outputs) {
    check_counts(of_rank.size(), inputs.size(), "all_gather_coalesced");
    for (size_t i = 0; i < inputs.size(); ++i) by_tensor[i].push_back(of_rank[i]);
  }
  return allgather(by_tensor, inputs, options);
}

ProcessGroupDmlcomm::WorkPtr ProcessGroupDmlcomm::allgather_into_tensor_coalesced(
    TensorList& outputs, TensorList& inputs, const c10d::AllgatherOptions& options) {
  check_counts(outputs.size(), inputs.size(), "all_gather_into_tensor");
  check_tensors(inputs, "all_gather_into_tensor");
  check_tensors(outputs, "all_gather_into_tensor");
  const Call call =
      begin(OpType::_ALLGATHER_BASE, "dmlcomm:_all_gather_base", options, inputs.front());
  CallTensors buffers;
  c10::SmallVector<std::pair<Span, std::vector<Span>>, 1> parts;
  for (size_t i = 0; i < inputs.size(); ++i) {
    check_same(outputs[i], inputs[i], size_, "all_gather_into_tensor");
    const Span input = buffers.read(inputs[i]);
    parts.emplace_back(input, split_evenly(buffers.write(outputs[i]), size_));
  }
  auto work = make_work(call, std::move(buffers), inputs);
  for (size_t i = 0; i < parts.size(); ++i) {
    auto& [input, spans] = parts[i];
    work->add(
        call.communicator->all_gather(input, std::move(spans), moving(call.options, inputs[i])));
  }
  return finish(call, std::move(work));
}

ProcessGroupDmlcomm::WorkPtr ProcessGroupDmlcomm::gather(std::vector<TensorList>& outputs,
                                                         TensorList& inputs,
                                                         const c10d::GatherOptions& options) {
  check_list(inputs, "gather");
  TORCH_CHECK_VALUE(inputs.size() == 1, "dmlcomm gather: expected one input, got ", inputs.size());
  const int root = check_rank(options.rootRank, "gather", "root");
  const Call call = begin(OpType::GATHER, "dmlcomm:gather", options, inputs.front());
  CallTensors buffers;
  const Span input = buffers.read(inputs[0]);
  std::vector<Span> spans;
  if (rank_ == root) {
    check_counts(outputs.size(), inputs.size(), "gather");
    check_parts(outputs[0], inputs[0], size_, "gather", "the output list of the root");
    check_same(outputs[0][rank_], inputs[0], 1, "gather");
    spans = write_all(buffers, outputs[0]);
  } else {
    TORCH_CHECK_VALUE(outputs.empty() || outputs[0].empty(), "dmlcomm gather: rank ", rank_,
                      " is not the root (", root, ") and must pass no outputs");
  }
  auto work = make_work(call, std::move(buffers), inputs);
  work->add(
      call.communicator->gather(input, std::move(spans), root, moving(call.options, inputs[0])));
  return finish(call, std::move(work));
}

ProcessGroupDmlcomm::WorkPtr ProcessGroupDmlcomm::gather_into_tensor(
    at::Tensor& output, at::Tensor& input, const c10d::GatherOptions& options) {
  check_tensor(input, "gather_into_tensor");
  const int root = check_rank(options.rootRank, "gather_into_tensor", "root");
  const Call call = begin(OpType::GATHER, "dmlcomm:gather", options, input);
  CallTensors buffers;
  const Span span = buffers.read(input);
  std::vector<Span> spans;
  if (rank_ == root) {
    check_tensor(output, "gather_into_tensor");
    check_same(output, input, size_, "gather_into_tensor");
    spans = split_evenly(buffers.write(output), size_);
  }
  auto work = make_work(call, std::move(buffers), {input});
  work->add(call.communicator->gather(span, std::move(spans), root, moving(call.options, input)));
  return finish(call, std::move(work));
}

ProcessGroupDmlcomm::WorkPtr ProcessGroupDmlcomm::scatter(TensorList& outputs,
                                                          std::vector<TensorList>& inputs,
                                                          const c10d::ScatterOptions& options) {
  check_list(outputs, "scatter");
  TORCH_CHECK_VALUE(outputs.size() == 1, "dmlcomm scatter: expected one output, got ",
                    outputs.size());
  const int root = check_rank(options.rootRank, "scatter", "root");
  const Call call = begin(OpType::SCATTER, "dmlcomm:scatter", options, outputs.front());
  CallTensors buffers;
  const Span output = buffers.write(outputs[0]);
  std::vector<Span> spans;
  if (rank_ == root) {
    check_counts(outputs.size(), inputs.size(), "scatter");
    check_parts(inputs[0], outputs[0], size_, "scatter", "the input list of the root");
    check_same(inputs[0][rank_], outputs[0], 1, "scatter");
    spans = read_all(buffers, inputs[0]);
  } else {
    TORCH_CHECK_VALUE(inputs.empty() || inputs[0].empty(), "dmlcomm scatter: rank ", rank_,
                      " is not the root (", root, ") and must pass no inputs");
  }
  auto work = make_work(call, std::move(buffers), rank_ == root ? inputs[0] : outputs);
  work->add(
      call.communicator->scatter(std::move(spans), output, root, moving(call.options, outputs[0])));
  return finish(call, std::move(work));
}

ProcessGroupDmlcomm::WorkPtr ProcessGroupDmlcomm::reduce_scatter(
    TensorList& outputs, std::vector<TensorList>& inputs,
    const c10d::ReduceScatterOptions& options) {
  check_list(outputs, "reduce_scatter");
  check_counts(outputs.size(), inputs.size(), "reduce_scatter");
  const Call call =
      begin(OpType::REDUCE_SCATTER, "dmlcomm:reduce_scatter", options, outputs.front());
  struct Part {
    std::vector<Span> inputs;
    Span output;
    Reduction reduction;
  };
  CallTensors buffers;
  c10::SmallVector<Part, 1> parts;
  for (size_t i = 0; i < outputs.size(); ++i) {
    check_parts(inputs[i], outputs[i], size_, "reduce_scatter", "the input list");
    check_same(inputs[i][rank_], outputs[i], 1, "reduce_scatter");
    const auto reduction = reduction_for(outputs[i], options.reduceOp, "reduce_scatter");
    std::vector<Span> spans;
    for (const auto& input : inputs[i]) spans.push_back(reduction_input(buffers, input, reduction));
    parts.push_back({std::move(spans), buffers.write(outputs[i]), reduction});
  }
  auto work = make_work(call, std::move(buffers), inputs[0]);
  for (auto& [spans, output, reduction] : parts) {
    work->add(call.communicator->reduce_scatter(std::move(spans), output, reduction.dtype,
                                                reduction.op, call.options));
  }
  return finish(call, std::move(work));
}

ProcessGroupDmlcomm::WorkPtr ProcessGroupDmlcomm::_reduce_scatter_base(
    at::Tensor& output, at::Tensor& input, const c10d::ReduceScatterOptions& options) {
  TensorList outputs{output};
  TensorList inputs{input};
  return reduce_scatter_tensor_coalesced(outputs, inputs, options);
}

ProcessGroupDmlcomm::WorkPtr ProcessGroupDmlcomm::reduce_scatter_tensor_coalesced(
    TensorList& outputs, TensorList& inputs, const c10d::ReduceScatterOptions& options) {
  check_counts(outputs.size(), inputs.size(), "reduce_scatter_tensor");
  check_tensors(inputs, "reduce_scatter_tensor");
  check_tensors(outputs, "reduce_scatter_tensor");
  const Call call =
      begin(OpType::_REDUCE_SCATTER_BASE, "dmlcomm:_reduce_scatter_base", options, outputs.front());
  struct Part {
    std::vector<Span> inputs;
    Span output;
    Reduction reduction;
  };
  CallTensors buffers;
  c10::SmallVector<Part, 1> parts;
  for (size_t i = 0; i < outputs.size(); ++i) {
    check_same(inputs[i], outputs[i], size_, "reduce_scatter_tensor");
    const auto reduction = reduction_for(outputs[i], options.reduceOp, "reduce_scatter_tensor");
    const Span input = reduction_input(buffers, inputs[i], reduction);
    parts.push_back({split_evenly(input, size_), buffers.write(outputs[i]), reduction});
  }
  auto work = make_work(call, std::move(buffers), inputs);
  for (auto& [spans, output, reduction] : parts) {
    work->add(call.communicator->reduce_scatter(std::move(spans), output, reduction.dtype,
                                                reduction.op, call.options));
  }
  return finish(call, std::move(work));
}

ProcessGroupDmlcomm::WorkPtr ProcessGroupDmlcomm::alltoall_base(
    at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_splits,
    std::vector<int64_t>& input_splits, const c10d::AllToAllOptions& options) {
  check_tensors({input, output}, "all_to_all");
  TORCH_CHECK_TYPE(input.scalar_type() == output.scalar_type(),
                   "dmlcomm all_to_all: input and output have different element types, ",
                   input.scalar_type(), " and ", output.scalar_type());
  const auto input_rows = row_splits(input, input_splits, size_, "input");
  const auto output_rows = row_splits(output, output_splits, size_, "output");
  const Call call = begin(OpType::ALLTOALL_BASE, "dmlcomm:all_to_all", options, input);
  CallTensors buffers;
  auto inputs = split_rows(buffers.read(input), input, input_rows);
  auto outputs = split_rows(buffers.write(output), output, output_rows);
  auto work = make_work(call, std::move(buffers), {input});
  work->add(call.communicator->all_to_all(std::move(inputs), std::move(outputs),
                                          moving(call.options, input)));
  return finish(call, std::move(work));
}

ProcessGroupDmlcomm::WorkPtr ProcessGroupDmlcomm::alltoall(TensorList& outputs, TensorList& inputs,
                                                           const c10d::AllToAllOptions& options) {
  check_list(inputs, "all_to_all");
  check_parts(inputs, inputs[0], size_, "all_to_all", "the input list");
  check_parts(outputs, inputs[0], size_, "all_to_all", "the output list");
  const Call call = begin(OpType::ALLTOALL, "dmlcomm:all_to_all", options, inputs.front());
  CallTensors buffers;
  auto input_spans = read_all(buffers, inputs);
  auto output_spans = write_all(buffers, outputs);
  auto work = make_work(call, std::move(buffers), inputs);
  work->add(call.communicator->all_to_all(std::move(input_spans), std::move(output_spans),
                                          moving(call.options, inputs[0])));
  return finish(call, std::move(work));
}

ProcessGroupDmlcomm::WorkPtr ProcessGroupDmlcomm::send(TensorList& tensors, int destination,
                                                       int tag) {
  return start_send_or_recv(OpType::SEND, "dmlcomm:send", tensors,
                            check_rank(destination, "send", "rank"), tag);
}

ProcessGroupDmlcomm::WorkPtr ProcessGroupDmlcomm::recv(TensorList& tensors, int source, int tag) {
  return start_send_or_recv(OpType::RECV, "dmlcomm:recv", tensors,
                            check_rank(source, "recv", "rank"), tag);
}

ProcessGroupDmlcomm::WorkPtr ProcessGroupDmlcomm::recvAnysource(TensorList& tensors, int tag) {
  return start_send_or_recv(OpType::RECVANYSOURCE, "dmlcomm:recvAnySource", tensors,
                            engine::kAnySource, tag);
}

ProcessGroupDmlcomm::WorkPtr ProcessGroupDmlcomm::start_send_or_recv(OpType type, const char* title,
                                                                     TensorList& tensors, int peer,
                                                                     int tag) {
  Call call{.type = type,
            .title = title,
            .options = {},
            .peer = peer,
            .blocking = false,
            .communicator = communicator_.get(),
            .cuda = nullptr};
  call.options.ticket = current_ticket();
  const bool sends = call.type == OpType::SEND;
  const char* operation = sends ? "send" : "recv";
  check_list(tensors, operation);
  TORCH_CHECK_VALUE(tag >= 0 && tag <= kMaxTag, "dmlcomm ", operation,
                    ": expected a tag from 0 to ", kMaxTag, ", got ", tag);
  if (tensors.front().is_cuda() && !is_estimating()) go_to_device_of(tensors.front(), call);
  CallTensors buffers;
  c10::SmallVector<Span, 1> sources;
  c10::SmallVector<Span, 1> destinations;
  for (const auto& tensor : tensors) {
    if (sends) {
      sources.push_back(buffers.read(tensor));
      buffers.add_result(tensor);
    } else {
      destinations.push_back(buffers.write(tensor));
    }
  }
  auto work = make_work(call, std::move(buffers), tensors);
  const auto wire_tag = static_cast<uint32_t>(tag);
  for (const auto& source : sources) {
    work->add(call.communicator->send(source, call.peer, wire_tag, call.options));
  }
  for (const auto& destination : destinations) {
    work->add(call.communicator->recv(destination, call.peer, wire_tag, call.options));
  }
  return finish(call, std::move(work));
}

ProcessGroupDmlcomm::WorkPtr ProcessGroupDmlcomm::barrier(const c10d::BarrierOptions& options) {
  const Call call = begin(OpType::BARRIER, "dmlcomm:barrier", options, {});
  auto work = make_work(call, {}, {});
  work->add(call.communicator->barrier(call.options));
  return finish(call, std::move(work));
}

}  // namespace dmlcomm::adaptor
