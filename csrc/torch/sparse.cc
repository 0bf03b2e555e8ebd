#include "torch/sparse.h"

#include <ATen/ops/sparse_coo_tensor.h>

#include <string>

#include "torch/completion_pool.h"
#include "torch/tensors.h"

namespace dmlcomm::adaptor {
namespace {

// Tags of the adaptor have the highest bit, which user tags cannot have. The sequence number keeps
// calls apart, the lowest bit keeps indices and values apart.
uint32_t tag_of(uint64_t sequence) {
  return 0x80000000u | (static_cast<uint32_t>(sequence << 1) & 0x7ffffffeu);
}

Span readable(const at::Tensor& tensor) { return {tensor.const_data_ptr(), tensor.nbytes()}; }

}  // namespace

void check_sparse(const at::Tensor& tensor, const c10d::ReduceOp& op) {
  TORCH_CHECK_VALUE(
      tensor.layout() == at::kSparse && tensor.device().is_cpu(),
      "dmlcomm all_reduce: expected a sparse COO tensor on the CPU or a GPU, got layout ",
      tensor.layout(), " on ", tensor.device());
  TORCH_CHECK_VALUE(op.op_ == c10d::ReduceOp::SUM,
                    "dmlcomm all_reduce: sparse tensors can only be summed; expected ReduceOp.SUM");
}

bool SparseSum::Header::same_shape(const Header& other) const {
  return scalar_type == other.scalar_type && sparse_dims == other.sparse_dims &&
         num_dims == other.num_dims && sizes == other.sizes;
}

std::shared_ptr<SparseSum> SparseSum::start(std::shared_ptr<engine::Communicator> communicator,
                                            const at::Tensor& tensor,
                                            const engine::OpOptions& options) {
  auto sum = std::make_shared<SparseSum>(std::move(communicator), tensor, options);
  sum->exchange_headers();
  return sum;
}

SparseSum::SparseSum(std::shared_ptr<engine::Communicator> communicator, const at::Tensor& tensor,
                     const engine::OpOptions& options)
    : communicator_(std::move(communicator)),
      options_{.timeout = options.timeout,
               .inline_wait = false,
               .element = std::nullopt,
               .ticket = options.ticket},
      sizes_(tensor.sizes().vec()),
      parts_(static_cast<size_t>(communicator_->num_ranks())),
      headers_(parts_.size()) {
  TORCH_CHECK_VALUE(sizes_.size() <= kMaxDims, "dmlcomm all_reduce: a sparse tensor of ",
                    sizes_.size(), " dimensions; expected at most ", kMaxDims);
  at::NoGradGuard no_grad;
  const auto own = tensor.coalesce();
  const auto rank = static_cast<size_t>(communicator_->rank());
  parts_[rank] = {own.indices().contiguous(), own.values().contiguous()};
  Header& header = headers_[rank];
  header.num_nonzero = own._nnz();
  header.scalar_type = static_cast<int64_t>(own.scalar_type());
  header.sparse_dims = own.sparse_dim();
  header.num_dims = static_cast<int64_t>(sizes_.size());
  std::copy(sizes_.begin(), sizes_.end(), header.sizes.begin());
}

void SparseSum::exchange_headers() {
  std::vector<Span> outputs;
  for (auto& header : headers_) outputs.push_back({&header, sizeof(Header)});
  const Header* own = &headers_[static_cast<size_t>(communicator_->rank())];
  headers_operation_ =
      communicator_->all_gather({own, sizeof(Header)}, std::move(outputs), options_);
  // The next stage allocates tensors: not on the engine's thread.
  headers_operation_->on_done([self = shared_from_this()](const Status& status) {
    if (!status.ok()) return self->complete(status);
    CompletionPool::instance().submit([self] { self->exchange_parts(); });
  });
}

void SparseSum::exchange_parts() {
  if (Status status = check_headers(); !status.ok()) return complete(status);
  const uint32_t tag = tag_of(headers_operation_->sequence());
  std::vector<engine::OperationPtr> operations;
  for (int peer = 0; peer < communicator_->num_ranks(); ++peer) {
    if (peer != communicator_->rank()) exchange_part(peer, tag, operations);
  }
  // One more than operations, released below: complete() must not run while callbacks are
  // registered.
  num_running_ = operations.size() + 1;
  auto on_one_done = [self = shared_from_this()](const Status& status) {
    if (!status.ok()) self->complete(status);
    if (--self->num_running_ == 0) self->complete(Status());
  };
  for (auto& operation : operations) operation->on_done(on_one_done);
  on_one_done(Status());
}

void SparseSum::exchange_part(int peer, uint32_t tag,
                              std::vector<engine::OperationPtr>& operations) {
  const Part& own = parts_[static_cast<size_t>(communicator_->rank())];
  if (own.indices.size(1) > 0) {
    operations.push_back(communicator_->send(readable(own.indices), peer, tag, options_));
    operations.push_back(communicator_->send(readable(own.values), peer, tag | 1u, options_));
  }
  const Header& header = headers_[static_cast<size_t>(peer)];
  Part& part = parts_[static_cast<size_t>(peer)];
  part.indices = at::empty({header.sparse_dims, header.num_nonzero}, own.indices.options());
  part.values = at::empty(sizes_of_values(header.num_nonzero), own.values.options());
  if (header.num_nonzero > 0) {
    operations.push_back(communicator_->recv(writable(part.indices), peer, tag, options_));
    operations.push_back(communicator_->recv(writable(part.values), peer, tag | 1u, options_));
  }
}

Status SparseSum::check_headers() const {
  const auto own = static_cast<size_t>(communicator_->rank());
  for (size_t rank = 0; rank < headers_.size(); ++rank) {
    if (headers_[rank].same_shape(headers_[own])) continue;
    return {StatusCode::mismatch,
            "all_reduce of sparse tensors: rank " + std::to_string(own) + " and rank " +
                std::to_string(rank) +
                " passed tensors of different shape, element type or number of sparse dimensions"};
  }
  return {};
}

std::vector<int64_t> SparseSum::sizes_of_values(int64_t num_nonzero) const {
  std::vector<int64_t> sizes{num_nonzero};
  const auto own = static_cast<size_t>(communicator_->rank());
  sizes.insert(sizes.end(), sizes_.begin() + headers_[own].sparse_dims, sizes_.end());
  return sizes;
}

void SparseSum::store_into(at::Tensor& tensor) const {
  std::vector<at::Tensor> indices;
  std::vector<at::Tensor> values;
  for (const Part& part : parts_) {
    indices.push_back(part.indices);
    values.push_back(part.values);
  }
  auto sum = at::sparse_coo_tensor(at::cat(indices, 1), at::cat(values, 0), sizes_);
  tensor.copy_(sum.coalesce());
}

}  // namespace dmlcomm::adaptor
