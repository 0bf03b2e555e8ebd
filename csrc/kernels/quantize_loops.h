// The loops of quantization: one block at a time, which stays in registers or the first cache
// between its largest number and its codes. See elements.h for the rules, quantize.h for the
// format.
#pragma once

#include "kernels/elements.h"
#include "kernels/quantize.h"

namespace dmlcomm::kernels {
namespace {

using S32 = Vector<int32_t, kF32Lanes>;

constexpr size_t kBlockPacks = kQuantizedBlock / kF32Lanes;
constexpr size_t kPaddedBytes = kQuantizedBlock * sizeof(float);

// Codes from -127 to 127. Adding 1.5 x 2^23 lets the addition round to nearest even, and leaves the
// number in the lowest bits.
struct Int8Code {
  using Raw = Vector<int8_t, kF32Lanes>;
  static constexpr float kLargest = 127;

  DMLCOMM_ALWAYS_INLINE static F32 load(const uint8_t* from) {
    return __builtin_convertvector(__builtin_convertvector(load_as<Raw>(from), S32), F32);
  }
  DMLCOMM_ALWAYS_INLINE static void store(uint8_t* to, F32 value) {
    constexpr float kRounder = 12582912;
    const S32 bits = __builtin_bit_cast(S32, value + kRounder);
    store_as(to, __builtin_convertvector(bits, Raw));
  }
};

struct Float8Code : Float8E4M3 {
  static constexpr float kLargest = 448;
};

struct BlockScale {
  float scale;
  float inverse;
  bool is_finite;
};

// Magnitudes have the order of their bits. Between the limits neither the scale nor its inverse nor
// a product of code and scale is subnormal or infinite.
template <typename Code>
DMLCOMM_ALWAYS_INLINE BlockScale scale_of(const F32* numbers) {
  constexpr int32_t kMagnitude = 0x7fffffff;
  constexpr int32_t kLeast = (127 - 100) << 23;     // 2^-100
  constexpr int32_t kTooLarge = (127 + 127) << 23;  // 2^127
  S32 largest{};
  for (size_t p = 0; p < kBlockPacks; ++p) {
    const S32 magnitude = __builtin_bit_cast(S32, numbers[p]) & kMagnitude;
    largest = magnitude > largest ? magnitude : largest;
  }
  int32_t most = 0;
  for (size_t lane = 0; lane < kF32Lanes; ++lane)
    most = largest[lane] > most ? largest[lane] : most;
  if (most >= kTooLarge) return {__builtin_bit_cast(float, 0x7fc00000), 0, false};
  if (most < kLeast) return {0, 0, true};
  const auto number = __builtin_bit_cast(float, most);
  return {number / Code::kLargest, Code::kLargest / number, true};
}

template <typename Code>
DMLCOMM_ALWAYS_INLINE void add_source(F32* numbers, const uint8_t* block) {
  const auto scale = load_as<float>(block);
  const uint8_t* const codes = block + sizeof(float);
  for (size_t p = 0; p < kBlockPacks; ++p) {
    numbers[p] += Code::load(codes + p * kF32Lanes) * scale;
  }
}

// Writes the codes of a block, and what they leave of its numbers.
template <typename Code>
DMLCOMM_ALWAYS_INLINE void write_block(uint8_t* dst, uint8_t* error, const F32* numbers) {
  const BlockScale block = scale_of<Code>(numbers);
  store_as(dst, block.scale);
  uint8_t* const codes = dst + sizeof(float);
  if (!block.is_finite) {
    __builtin_memset(codes, 0, kQuantizedBlock);
    if (error != nullptr) __builtin_memset(error, 0, kPaddedBytes);
    return;
  }
  for (size_t p = 0; p < kBlockPacks; ++p) {
    Code::store(codes + p * kF32Lanes, numbers[p] * block.inverse);
  }
  if (error == nullptr) return;
  for (size_t p = 0; p < kBlockPacks; ++p) {
    store_as(error + p * kVectorBytes,
             numbers[p] - Code::load(codes + p * kF32Lanes) * block.scale);
  }
}

template <typename Code>
DMLCOMM_ALWAYS_INLINE void quantize_block(uint8_t* dst, uint8_t* error, const uint8_t* values,
                                          const QuantizeInput& input, size_t offset) {
  F32 numbers[kBlockPacks];
  for (size_t p = 0; p < kBlockPacks; ++p) {
    numbers[p] = load_as<F32>(values + p * kVectorBytes) * input.factor;
  }
  for (size_t p = 0; error != nullptr && p < kBlockPacks; ++p) {
    numbers[p] += load_as<F32>(error + p * kVectorBytes);
  }
  for (size_t k = 0; k < input.num_sources; ++k) {
    add_source<Code>(numbers, static_cast<const uint8_t*>(input.sources[k]) + offset);
  }
  write_block<Code>(dst + offset, error, numbers);
}

// Whole blocks; the last numbers go through copies of the size of a block, filled up with zeros.
template <typename Code>
void quantize_all(void* dst_memory, void* error_memory, const QuantizeInput& input, size_t count) {
  auto* const dst = static_cast<uint8_t*>(dst_memory);
  auto* error = static_cast<uint8_t*>(error_memory);
  const auto* values = static_cast<const uint8_t*>(input.values);
  size_t offset = 0;
  for (; count >= kQuantizedBlock; count -= kQuantizedBlock) {
    quantize_block<Code>(dst, error, values, input, offset);
    offset += kQuantizedBlockBytes;
    values += kPaddedBytes;
    if (error != nullptr) error += kPaddedBytes;
  }
  if (count == 0) return;
  uint8_t last_values[kPaddedBytes] = {};
  uint8_t last_error[kPaddedBytes] = {};
  const size_t bytes = count * sizeof(float);
  __builtin_memcpy(last_values, values, bytes);
  if (error != nullptr) __builtin_memcpy(last_error, error, bytes);
  quantize_block<Code>(dst, last_error, last_values, input, offset);
  if (error != nullptr) __builtin_memcpy(error, last_error, bytes);
}

template <typename Code>
DMLCOMM_ALWAYS_INLINE void dequantize_block(uint8_t* dst, const uint8_t* block) {
  const auto scale = load_as<float>(block);
  const uint8_t* const codes = block + sizeof(float);
  for (size_t p = 0; p < kBlockPacks; ++p) {
    store_as(dst + p * kVectorBytes, Code::load(codes + p * kF32Lanes) * scale);
  }
}

template <typename Code>
void dequantize_all(void* dst_memory, const void* src_memory, size_t count) {
  auto* dst = static_cast<uint8_t*>(dst_memory);
  const auto* src = static_cast<const uint8_t*>(src_memory);
  for (; count >= kQuantizedBlock; count -= kQuantizedBlock) {
    dequantize_block<Code>(dst, src);
    dst += kPaddedBytes;
    src += kQuantizedBlockBytes;
  }
  if (count == 0) return;
  uint8_t last[kPaddedBytes];
  dequantize_block<Code>(last, src);
  __builtin_memcpy(dst, last, count * sizeof(float));
}

}  // namespace
}  // namespace dmlcomm::kernels
