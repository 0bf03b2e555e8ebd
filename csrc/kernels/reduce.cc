#include "kernels/reduce.h"

#include <cstring>

#include "base/check.h"
#include "kernels/dispatch.h"

namespace dmlcomm::kernels {
namespace {

// nullptr for what is not defined, and for numbers that came from the wire and name nothing.
ReduceFunction find_reduce(DType dtype, ReduceOp op) {
  const auto row = static_cast<size_t>(dtype);
  const auto column = static_cast<size_t>(op);
  if (row >= kNumDTypes || column >= kNumReduceOps) return nullptr;
  return best_table().reduce[row][column];
}

}  // namespace

bool supports(DType dtype, ReduceOp op) { return find_reduce(dtype, op) != nullptr; }

bool supports_scale(DType dtype) { return find(best_table().scale, dtype) != nullptr; }

void reduce(void* dst, const void* const* srcs, size_t num_srcs, size_t count, DType dtype,
            ReduceOp op, uint64_t divisor) {
  if (op == ReduceOp::avg && divisor == 1 && supports(dtype, op)) op = ReduceOp::sum;
  const ReduceFunction function = find_reduce(dtype, op);
  DMLCOMM_CHECK(function != nullptr);
  DMLCOMM_CHECK(num_srcs >= 1);
  DMLCOMM_CHECK(divisor >= 1);
  if (count == 0) return;
  if (num_srcs == 1 && op != ReduceOp::avg) {
    if (dst != srcs[0]) std::memcpy(dst, srcs[0], count * size_of(dtype));
    return;
  }
  function(dst, srcs, num_srcs, count, divisor);
}

void scale(void* dst, const void* src, size_t count, DType dtype, double factor) {
  get(best_table().scale, dtype)(dst, src, count, factor);
}

const char* isa_name() { return best_table().isa; }

}  // namespace dmlcomm::kernels
