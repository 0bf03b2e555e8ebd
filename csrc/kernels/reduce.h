// Reduction kernels: pure loops over raw memory, chosen by dtype x operator x instruction set.
//
// No allocation, no locks, callable from any thread. Pointers need the alignment of a byte only.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/dtype.h"

namespace dmlcomm::kernels {

// Whether `reduce` is defined for the pair: bitwise operators exist for integers and bool only,
// min and max not for complex numbers, avg not for bool. bool: sum/max/bor = or, product/min/band =
// and, bxor = xor. False for numbers that name no type or operator.
bool supports(DType dtype, ReduceOp op);

// dst[i] = op(srcs[0][i], srcs[1][i], ..., srcs[num_srcs-1][i]) for i in [0, count), in this order.
//
// Caller's promises: num_srcs >= 1; supports(dtype, op); dst is equal to one of the srcs or
// overlaps none. f16, bf16 and float8 accumulate in f32 and are rounded once. For ReduceOp::avg the
// result is divided by `divisor` (floats: before rounding; integers: truncated division); pass 1
// for every partial reduction but the last. min/max propagate NaN. Integer sums and products wrap.
// f8e4m3 saturates at 448, and every other format overflows to infinity. All instruction sets give
// the same bits, except which bits a NaN has.
void reduce(void* dst, const void* const* srcs, size_t num_srcs, size_t count, DType dtype,
            ReduceOp op, uint64_t divisor);

// dst[i] = src[i] * factor, for PREMUL_SUM; dst == src or no overlap. Floating-point and complex
// only.
void scale(void* dst, const void* src, size_t count, DType dtype, double factor);

// Whether `scale` is defined for the type.
bool supports_scale(DType dtype);

// The instruction set the kernels run on: "baseline", "avx2", "avx512" (x86-64) or "neon" (arm64).
const char* isa_name();

}  // namespace dmlcomm::kernels
