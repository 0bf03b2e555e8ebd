// Blocks of f32 as one scale and codes of a byte each: pure loops over raw memory.
//
// No allocation, no locks, callable from any thread. Pointers need the alignment of a byte only,
// and the arrays of a call do not overlap. All instruction sets give the same bits.
//
// A block is kQuantizedBlock numbers; the last one of an array is filled up with zeros. In memory
// it is its scale (f32) and a code per number, each code x scale. The codes are i8 (-127 to 127) or
// f8e4m3 (up to 448); the scale gives the largest number of the block the largest code. Every array
// is read and written once.
//
// A block with a NaN, an infinity or a number from 2^127 on becomes NaN as a whole, and its error
// becomes zero. A block of numbers below 2^-100 becomes zero; its error keeps them.
#pragma once

#include <cstddef>

#include "base/dtype.h"

namespace dmlcomm::kernels {

// Scales are 1/65 of the bytes. Larger blocks save little, and a large number costs its neighbours
// in a block their last bits.
inline constexpr size_t kQuantizedBlock = 256;
inline constexpr size_t kQuantizedBlockBytes = sizeof(float) + kQuantizedBlock;

// What `count` numbers take.
constexpr size_t quantized_bytes(size_t count) {
  return (count + kQuantizedBlock - 1) / kQuantizedBlock * kQuantizedBlockBytes;
}

// Whether codes can be of the type: i8 and f8e4m3.
bool supports_quantize(DType codes);

// What is quantized: factor x values[i] + error[i] + the numbers of all sources, added in this
// order.
struct QuantizeInput {
  const void* values;  // f32
  float factor;
  const void* const* sources;  // each quantized, with the same codes
  size_t num_sources;
};

// dst becomes the input, rounded; error becomes the input less dst. Without an error (nullptr)
// nothing is added for it, and what rounding takes is lost.
void quantize(void* dst, void* error, const QuantizeInput& input, size_t count, DType codes);

// dst (f32) becomes the numbers of src.
void dequantize(void* dst, const void* src, size_t count, DType codes);

}  // namespace dmlcomm::kernels
