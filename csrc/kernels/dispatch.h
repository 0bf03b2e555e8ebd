// The kernels of one instruction set as a table of functions, and which tables this CPU can run.
//
// Internal to kernels, its tests and its benchmark: everybody else calls kernels/reduce.h,
// convert.h, update.h and quantize.h, which use the best table.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/check.h"
#include "base/dtype.h"
#include "kernels/quantize.h"
#include "kernels/update.h"

namespace dmlcomm::kernels {

// As `reduce`, with the dtype and the operator fixed. Only the functions of avg look at `divisor`.
using ReduceFunction = void (*)(void* dst, const void* const* srcs, size_t num_srcs, size_t count,
                                uint64_t divisor);
// As `scale`, with the dtype fixed.
using ScaleFunction = void (*)(void* dst, const void* src, size_t count, double factor);
// As `convert`, with the dtypes fixed.
using ConvertFunction = void (*)(void* dst, const void* src, size_t count);
// As `update_sgd` and its like, with the dtype fixed. arrays[0] is the weights; the state follows.
template <typename Step>
using UpdateFunction = void (*)(void* const* arrays, const void* gradient, size_t count,
                                const Step& step);
// As `add_scaled`, with the dtype fixed.
using AddScaledFunction = void (*)(void* weights, const void* gradient, size_t count, double scale);

// As `quantize` and `dequantize`, with the type of the codes fixed.
using QuantizeFunction = void (*)(void* dst, void* error, const QuantizeInput& input, size_t count);
using DequantizeFunction = void (*)(void* dst, const void* src, size_t count);

// nullptr where the operation is not defined; the same entries are set in every table.
struct KernelTable {
  const char* isa = nullptr;
  ReduceFunction reduce[kNumDTypes][kNumReduceOps] = {};
  ScaleFunction scale[kNumDTypes] = {};
  ConvertFunction to_f32[kNumDTypes] = {};
  ConvertFunction from_f32[kNumDTypes] = {};
  AddScaledFunction add_scaled[kNumDTypes] = {};
  UpdateFunction<SgdStep> sgd[kNumDTypes] = {};
  UpdateFunction<AdamStep> adam[kNumDTypes] = {};
  UpdateFunction<AdagradStep> adagrad[kNumDTypes] = {};
  QuantizeFunction quantize[kNumDTypes] = {};
  DequantizeFunction dequantize[kNumDTypes] = {};
};

// Each is defined in a file of its own that is compiled for its instruction set. Call a table's
// functions only on a CPU that has it.
namespace baseline {
extern const KernelTable kTable;
}
namespace avx2 {
extern const KernelTable kTable;
}
namespace avx512 {
extern const KernelTable kTable;
}

// The tables that this CPU can run, from the least to the best. Never empty.
std::vector<const KernelTable*> runnable_tables();

// The last of them.
const KernelTable& best_table();

// One type's entry of a table; nullptr for numbers that name no type, too.
template <typename Function>
Function find(const Function (&functions)[kNumDTypes], DType dtype) {
  const auto row = static_cast<size_t>(dtype);
  return row < kNumDTypes ? functions[row] : nullptr;
}
// The same, where there must be one.
template <typename Function>
Function get(const Function (&functions)[kNumDTypes], DType dtype) {
  const Function function = find(functions, dtype);
  DMLCOMM_CHECK(function != nullptr);
  return function;
}

}  // namespace dmlcomm::kernels
