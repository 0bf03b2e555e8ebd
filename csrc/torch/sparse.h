// SparseSum: all_reduce of one sparse COO tensor.
//
// The ranks do not know how many elements the others have, so it runs in two stages:
//   1. all_gather of a fixed-size Header (the communicator checks that all ranks do this);
//   2. every rank sends its indices and values to every other rank, point to point, under tags that
//      only this call uses: stages of different calls may overlap in time.
// The sum is what coalescing the concatenation over ranks (in rank order) gives, on every rank
// alike.
#pragma once

#include <ATen/ATen.h>
#include <torch/csrc/distributed/c10d/Types.hpp>

#include <array>
#include <atomic>
#include <memory>
#include <vector>

#include "engine/completion.h"

namespace dmlcomm::adaptor {

// Throws ValueError unless `tensor` is a sparse COO tensor on the CPU and `op` is SUM.
void check_sparse(const at::Tensor& tensor, const c10d::ReduceOp& op);

class SparseSum final : public engine::Completion, public std::enable_shared_from_this<SparseSum> {
 public:
  static std::shared_ptr<SparseSum> start(std::shared_ptr<engine::Communicator> communicator,
                                          const at::Tensor& tensor,
                                          const engine::OpOptions& options);

  // Use start().
  SparseSum(std::shared_ptr<engine::Communicator> communicator, const at::Tensor& tensor,
            const engine::OpOptions& options);

  // After success: computes the sum and replaces the contents of `tensor` with it.
  void store_into(at::Tensor& tensor) const;

  uint64_t sequence() const override { return headers_operation_->sequence(); }

 private:
  static constexpr size_t kMaxDims = 12;

  // A rank's description of its tensor, for the others.
  struct Header {
    int64_t num_nonzero = 0;
    int64_t scalar_type = 0;
    int64_t sparse_dims = 0;
    int64_t num_dims = 0;
    std::array<int64_t, kMaxDims> sizes{};

    bool same_shape(const Header& other) const;
  };

  struct Part {
    at::Tensor indices;  // [sparse_dims, num_nonzero], int64
    at::Tensor values;   // [num_nonzero, dense sizes...]
  };

  void exchange_headers();
  void exchange_parts();
  // Sends our part to, and receives the part of, one other rank.
  void exchange_part(int peer, uint32_t tag, std::vector<engine::OperationPtr>& operations);
  Status check_headers() const;
  std::vector<int64_t> sizes_of_values(int64_t num_nonzero) const;

  const std::shared_ptr<engine::Communicator> communicator_;
  const engine::OpOptions options_;  // of all its operations
  const std::vector<int64_t> sizes_;
  std::vector<Part> parts_;      // by rank
  std::vector<Header> headers_;  // by rank
  engine::OperationPtr headers_operation_;
  std::atomic<size_t> num_running_{0};
};

}  // namespace dmlcomm::adaptor
