#include "torch/tensors.h"

#include <c10/util/Exception.h>

#include "kernels/reduce.h"

namespace dmlcomm::adaptor {
namespace {

// Whether the tensor's memory, read from its start, is its values.
bool is_plain(const at::Tensor& tensor) {
  return tensor.is_contiguous() && !tensor.is_conj() && !tensor.is_neg() &&
         !tensor._is_zerotensor();
}

at::Tensor contiguous_copy(const at::Tensor& tensor) {
  at::NoGradGuard no_grad;
  auto copy =
      at::empty(tensor.sizes(), tensor.options().memory_format(at::MemoryFormat::Contiguous));
  copy.copy_(tensor);
  return copy;
}

std::optional<DType> dtype_of(at::ScalarType type) {
  switch (type) {
    case at::kByte: return DType::u8;
    case at::kChar: return DType::i8;
    case at::kUInt16: return DType::u16;
    case at::kShort: return DType::i16;
    case at::kUInt32: return DType::u32;
    case at::kInt: return DType::i32;
    case at::kUInt64: return DType::u64;
    case at::kLong: return DType::i64;
    case at::kHalf: return DType::f16;
    case at::kBFloat16: return DType::bf16;
    case at::kFloat: return DType::f32;
    case at::kDouble: return DType::f64;
    case at::kComplexFloat: return DType::c64;
    case at::kComplexDouble: return DType::c128;
    case at::kBool: return DType::boolean;
    case at::kFloat8_e4m3fn: return DType::f8e4m3;
    case at::kFloat8_e5m2: return DType::f8e5m2;
    default: return std::nullopt;
  }
}

ReduceOp operator_of(c10d::ReduceOp::RedOpType op) {
  switch (op) {
    case c10d::ReduceOp::SUM:
    case c10d::ReduceOp::PREMUL_SUM: return ReduceOp::sum;
    case c10d::ReduceOp::AVG: return ReduceOp::avg;
    case c10d::ReduceOp::PRODUCT: return ReduceOp::product;
    case c10d::ReduceOp::MIN: return ReduceOp::min;
    case c10d::ReduceOp::MAX: return ReduceOp::max;
    case c10d::ReduceOp::BAND: return ReduceOp::band;
    case c10d::ReduceOp::BOR: return ReduceOp::bor;
    case c10d::ReduceOp::BXOR: return ReduceOp::bxor;
    default:
      TORCH_CHECK_VALUE(false, "dmlcomm: unknown reduce operator ", static_cast<int>(op),
                        "; expected one of torch.distributed.ReduceOp");
  }
}

double premul_factor(const c10d::ReduceOp& op, const char* operation) {
  auto* supplement = dynamic_cast<c10d::NCCLPreMulSumSupplement*>(op.supplement_.get());
  TORCH_CHECK_VALUE(supplement != nullptr, "dmlcomm ", operation,
                    ": PREMUL_SUM came without its factor; make the operator with "
                    "torch.distributed._make_nccl_premul_sum(factor)");
  if (!supplement->tensor_factor.defined()) return supplement->double_factor;
  TORCH_CHECK_VALUE(!supplement->tensor_factor.is_complex(), "dmlcomm ", operation,
                    ": the factor of PREMUL_SUM is complex; expected a real number");
  return supplement->tensor_factor.item<double>();
}

void check_device(const at::Tensor& tensor, const at::Tensor& other, const char* operation) {
  TORCH_CHECK_VALUE(tensor.device() == other.device(), "dmlcomm ", operation,
                    ": expected tensors on one device, got ", other.device(), " and ",
                    tensor.device());
}

}  // namespace

Span CallTensors::read(const at::Tensor& tensor) {
  kept_.push_back(is_plain(tensor) ? tensor : contiguous_copy(tensor));
  return {kept_.back().const_data_ptr(), kept_.back().nbytes()};
}

Span CallTensors::write(const at::Tensor& tensor) {
  results_.push_back(tensor);
  if (is_plain(tensor)) return writable(tensor);
  auto temporary =
      at::empty(tensor.sizes(), tensor.options().memory_format(at::MemoryFormat::Contiguous));
  copies_.emplace_back(temporary, tensor);
  return writable(temporary);
}

Span CallTensors::update(const at::Tensor& tensor) {
  results_.push_back(tensor);
  if (is_plain(tensor)) return writable(tensor);
  copies_.emplace_back(contiguous_copy(tensor), tensor);
  return writable(copies_.back().first);
}

at::Tensor CallTensors::read_flat(const at::Tensor& tensor) {
  (void)read(tensor);
  return kept_.back().detach().view({tensor.numel()});
}

at::Tensor CallTensors::update_flat(const at::Tensor& tensor) {
  (void)update(tensor);
  const at::Tensor& memory = is_plain(tensor) ? tensor : copies_.back().first;
  return memory.detach().view({tensor.numel()});
}

void CallTensors::copy_back(const at::Tensor& temporary, const at::Tensor& tensor) {
  copies_.emplace_back(temporary, tensor);
}

void CallTensors::finish() {
  at::NoGradGuard no_grad;
  if (finisher_) finisher_();
  for (auto& [from, to] : copies_) to.copy_(from);
  copies_.clear();
  finisher_ = nullptr;
}

std::vector<Span> split_evenly(Span span, int parts) {
  const size_t bytes = span.bytes / static_cast<size_t>(parts);
  std::vector<Span> result;
  result.reserve(static_cast<size_t>(parts));
  for (int part = 0; part < parts; ++part) result.emplace_back(span.data + part * bytes, bytes);
  return result;
}

std::vector<Span> split_rows(Span span, const at::Tensor& tensor,
                             const std::vector<int64_t>& rows) {
  const int64_t num_rows = tensor.dim() == 0 ? 1 : tensor.size(0);
  const size_t row_bytes = num_rows == 0 ? 0 : span.bytes / static_cast<size_t>(num_rows);
  std::vector<Span> result;
  result.reserve(rows.size());
  for (int64_t part : rows) {
    const size_t bytes = static_cast<size_t>(part) * row_bytes;
    result.emplace_back(span.data, bytes);
    span.data += bytes;
  }
  return result;
}

engine::OpOptions moving(engine::OpOptions options, const at::Tensor& tensor) {
  options.element = dtype_of(tensor.scalar_type());
  return options;
}

Reduction reduction_of(const at::Tensor& tensor, const c10d::ReduceOp& op, const char* operation) {
  const auto dtype = dtype_of(tensor.scalar_type());
  TORCH_CHECK_TYPE(dtype.has_value(), "dmlcomm ", operation, ": elements of type ",
                   tensor.scalar_type(),
                   " cannot be reduced; expected an integer, floating-point, complex or bool type "
                   "(operations that only move data take any type)");
  Reduction reduction{.dtype = *dtype, .op = operator_of(op.op_), .factor = std::nullopt};
  TORCH_CHECK_VALUE(kernels::supports(reduction.dtype, reduction.op), "dmlcomm ", operation, ": ",
                    to_string(reduction.op), " is not defined for elements of type ",
                    tensor.scalar_type(),
                    "; bitwise operators need integers or bool, min and max need real numbers");
  if (op.op_ == c10d::ReduceOp::PREMUL_SUM) {
    TORCH_CHECK_VALUE(kernels::supports_scale(reduction.dtype), "dmlcomm ", operation,
                      ": PREMUL_SUM is not defined for elements of type ", tensor.scalar_type(),
                      "; expected floating-point or complex");
    reduction.factor = premul_factor(op, operation);
  }
  return reduction;
}

void check_tensor(const at::Tensor& tensor, const char* operation) {
  TORCH_CHECK_VALUE(tensor.defined(), "dmlcomm ", operation, ": got an undefined tensor");
  TORCH_CHECK_VALUE(tensor.device().is_cpu() || tensor.device().is_cuda(), "dmlcomm ", operation,
                    ": expected a CPU or CUDA tensor, got one on ", tensor.device(),
                    "; move it with .cpu(), or give tensors of this kind their own backend in "
                    "init_process_group(\"cpu:dmlcomm,...\")");
  TORCH_CHECK_VALUE(tensor.layout() == at::kStrided, "dmlcomm ", operation,
                    ": expected a strided (dense) tensor, got layout ", tensor.layout(),
                    "; only all_reduce takes sparse COO tensors: call .to_dense() first");
}

void check_tensors(const std::vector<at::Tensor>& tensors, const char* operation) {
  for (const auto& tensor : tensors) {
    check_tensor(tensor, operation);
    check_device(tensor, tensors.front(), operation);
  }
}

void check_list(const std::vector<at::Tensor>& tensors, const char* operation) {
  TORCH_CHECK_VALUE(!tensors.empty(), "dmlcomm ", operation,
                    ": expected at least one tensor, got an empty list");
  check_tensors(tensors, operation);
}

void check_parts(const std::vector<at::Tensor>& parts, const at::Tensor& like, int num_ranks,
                 const char* operation, const char* argument) {
  TORCH_CHECK_VALUE(parts.size() == static_cast<size_t>(num_ranks), "dmlcomm ", operation,
                    ": expected ", num_ranks, " tensors in ", argument, ", one for each rank, got ",
                    parts.size());
  for (const auto& part : parts) {
    check_tensor(part, operation);
    check_device(part, like, operation);
    TORCH_CHECK_TYPE(part.scalar_type() == like.scalar_type(), "dmlcomm ", operation,
                     ": expected elements of type ", like.scalar_type(), " in ", argument, ", got ",
                     part.scalar_type());
  }
}

void check_same(const at::Tensor& whole, const at::Tensor& part, int64_t factor,
                const char* operation) {
  check_device(whole, part, operation);
  TORCH_CHECK_TYPE(whole.scalar_type() == part.scalar_type(), "dmlcomm ", operation,
                   ": input and output have different element types, ", part.scalar_type(), " and ",
                   whole.scalar_type());
  TORCH_CHECK_VALUE(whole.numel() == part.numel() * factor, "dmlcomm ", operation, ": expected ",
                    factor, " x ", part.numel(), " elements (shape ", part.sizes(), "), got ",
                    whole.numel(), " (shape ", whole.sizes(), ")");
}

}  // namespace dmlcomm::adaptor
