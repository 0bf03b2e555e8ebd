// Tensors as the engine sees them: memory ranges, element types and operators.
//
// Everything here checks its arguments and throws c10::ValueError / c10::TypeError (ValueError and
// TypeError in Python) that name the operation, the expected and the actual value.
#pragma once

#include <ATen/ATen.h>
#include <torch/csrc/distributed/c10d/Types.hpp>

#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "base/dtype.h"
#include "engine/communicator.h"

namespace dmlcomm::adaptor {

// The tensors of one call: keeps them alive until it is done, and lends the engine contiguous
// memory.
//
// A tensor that is not plain (strided, conjugated, negated) is staged through a contiguous
// temporary; finish() copies results back.
class CallTensors {
 public:
  // Memory with the tensor's values. The engine reads it.
  Span read(const at::Tensor& tensor);

  // Memory that becomes the tensor's values; its present contents are not read.
  Span write(const at::Tensor& tensor);

  // Memory with the tensor's values that the engine changes in place.
  Span update(const at::Tensor& tensor);

  // As read() and update(), in one dimension.
  at::Tensor read_flat(const at::Tensor& tensor);
  at::Tensor update_flat(const at::Tensor& tensor);

  // A result that came from `temporary`, to be copied by finish().
  void copy_back(const at::Tensor& temporary, const at::Tensor& tensor);

  // Keeps alive without being a result.
  void keep(at::Tensor tensor) { kept_.push_back(std::move(tensor)); }

  // Adds to the list that futures and Work.result() return.
  void add_result(const at::Tensor& tensor) { results_.push_back(tensor); }

  // Runs before the copies of finish(), for results that need more than a copy.
  void set_finisher(std::function<void()> finisher) { finisher_ = std::move(finisher); }

  // The operations do nothing: finish() leaves the tensors as they are.
  void leave_results() {
    copies_.clear();
    finisher_ = nullptr;
  }

  const std::vector<at::Tensor>& results() const { return results_; }

  // Every tensor that the operations or finish() touch.
  template <typename Visit>
  void for_each(Visit visit) const {
    for (const auto& tensor : results_) visit(tensor);
    for (const auto& tensor : kept_) visit(tensor);
    for (const auto& [from, to] : copies_) visit(from);
  }

  // Whether finish() has anything to do.
  bool needs_finish() const { return finisher_ != nullptr || !copies_.empty(); }

  // After success: puts staged results where they belong. May throw what torch throws.
  void finish();

 private:
  std::vector<at::Tensor> results_;
  std::vector<at::Tensor> kept_;
  std::vector<std::pair<at::Tensor, at::Tensor>> copies_;  // from, to
  std::function<void()> finisher_;
};

// The tensor's own memory.
inline Span writable(const at::Tensor& tensor) {
  return {tensor.mutable_data_ptr(), tensor.nbytes()};
}

// Splits memory into `parts` equal ranges. The caller has checked that it divides.
std::vector<Span> split_evenly(Span span, int parts);

// Splits memory by rows of the tensor's first dimension.
std::vector<Span> split_rows(Span span, const at::Tensor& tensor, const std::vector<int64_t>& rows);

// The options of an operation that only moves `tensor`'s bytes: ranks that disagree on what they
// are notice. Types that the core has no name for are just bytes.
engine::OpOptions moving(engine::OpOptions options, const at::Tensor& tensor);

// How a reduction runs: PREMUL_SUM is `factor` times each input, then a sum.
struct Reduction {
  DType dtype = DType::f32;
  ReduceOp op = ReduceOp::sum;
  std::optional<double> factor;
};

// Throws TypeError for an element type, ValueError for an operator that is not defined for it.
Reduction reduction_of(const at::Tensor& tensor, const c10d::ReduceOp& op, const char* operation);

// Every tensor of every call must be strided, and on the CPU or on a GPU of CUDA's.
void check_tensor(const at::Tensor& tensor, const char* operation);
// All of them, and that they are on one device.
void check_tensors(const std::vector<at::Tensor>& tensors, const char* operation);

// `tensors` is not empty, and passes check_tensors.
void check_list(const std::vector<at::Tensor>& tensors, const char* operation);

// `parts` has one tensor for each of `num_ranks`, with the element type and device of `like`.
void check_parts(const std::vector<at::Tensor>& parts, const at::Tensor& like, int num_ranks,
                 const char* operation, const char* argument);

// Two ends of a copy: same device, element type and number of elements times `factor`.
void check_same(const at::Tensor& whole, const at::Tensor& part, int64_t factor,
                const char* operation);

}  // namespace dmlcomm::adaptor
