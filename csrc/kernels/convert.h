// Conversions between f32 and the 16-bit floats: pure loops over raw memory.
//
// No allocation, no locks, callable from any thread. Pointers need the alignment of a byte only.
#pragma once

#include <cstddef>

#include "base/dtype.h"

namespace dmlcomm::kernels {

// Whether `convert` is defined for the pair: f32 to f16 or bf16, these to f32, and every type to
// itself. False for numbers that name no type.
bool supports_convert(DType to, DType from);

// dst[i] = src[i] as the other type, for i in [0, count); dst and src do not overlap.
//
// Rounds to nearest even; too large numbers become infinity; subnormal numbers stay. Every NaN
// becomes the quiet one without a sign (f16 0x7e00, bf16 0x7fc0, f32 0x7fc00000), so that all
// instruction sets give the same bits. A type to itself is a copy, bit by bit.
void convert(void* dst, DType to, const void* src, DType from, size_t count);

}  // namespace dmlcomm::kernels
