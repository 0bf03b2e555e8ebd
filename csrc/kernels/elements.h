// Elements: how a type lies in memory, and the vector of values that the loops compute with.
//
// An element type has
//   Value      a vector of kLanes elements in the form they are computed in (small floats: f32)
//   Scalar     one lane of it
//   kRawBytes  the size of one element in memory
//   load       kLanes elements from memory, of any alignment
//   store      kLanes elements to memory, rounded to nearest even
//
// Included only by the files that are compiled for one instruction set. Whatever is here must stay
// in the unnamed namespace, and nothing inline may come from elsewhere (also not from std): the
// linker keeps one copy of an inline function, and if it kept the one that was compiled for
// AVX-512, the baseline would run it on a CPU without.
#pragma once

#include <cstddef>
#include <cstdint>

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#define DMLCOMM_ALWAYS_INLINE [[gnu::always_inline]] inline

namespace dmlcomm::kernels {
namespace {

#if defined(__AVX512F__)
constexpr size_t kVectorBytes = 64;
#elif defined(__AVX2__)
constexpr size_t kVectorBytes = 32;
#else
constexpr size_t kVectorBytes = 16;  // SSE2, NEON
#endif

template <typename T, size_t kLanes>
struct VectorOf {
  typedef T type __attribute__((vector_size(sizeof(T) * kLanes)));
};
template <typename T, size_t kLanes>
using Vector = typename VectorOf<T, kLanes>::type;

// The formats that compute in f32 have this many lanes, whatever their size in memory.
constexpr size_t kF32Lanes = kVectorBytes / sizeof(float);
using F32 = Vector<float, kF32Lanes>;
using U32 = Vector<uint32_t, kF32Lanes>;

template <typename V>
DMLCOMM_ALWAYS_INLINE V load_as(const uint8_t* from) {
  V value;
  __builtin_memcpy(&value, from, sizeof(value));
  return value;
}

template <typename V>
DMLCOMM_ALWAYS_INLINE void store_as(uint8_t* to, V value) {
  __builtin_memcpy(to, &value, sizeof(value));
}

DMLCOMM_ALWAYS_INLINE U32 bits_of(F32 value) { return __builtin_bit_cast(U32, value); }
DMLCOMM_ALWAYS_INLINE F32 value_of(U32 bits) { return __builtin_bit_cast(F32, bits); }
DMLCOMM_ALWAYS_INLINE U32 every_lane(uint32_t bits) { return U32{} + bits; }

// Integers, f32 and f64: computed in the form they have in memory.
template <typename T>
struct Plain {
  static constexpr size_t kLanes = kVectorBytes / sizeof(T);
  static constexpr size_t kRawBytes = sizeof(T);
  using Scalar = T;
  using Value = Vector<T, kLanes>;

  DMLCOMM_ALWAYS_INLINE static Value load(const uint8_t* from) { return load_as<Value>(from); }
  DMLCOMM_ALWAYS_INLINE static void store(uint8_t* to, Value value) { store_as(to, value); }
};

// One at a time, for operations that have no vector instruction.
template <typename T>
struct Single {
  static constexpr size_t kLanes = 1;
  static constexpr size_t kRawBytes = sizeof(T);
  using Scalar = T;
  using Value = T;

  DMLCOMM_ALWAYS_INLINE static T load(const uint8_t* from) { return load_as<T>(from); }
  DMLCOMM_ALWAYS_INLINE static void store(uint8_t* to, T value) { store_as(to, value); }
};

template <typename T>
struct ComplexNumber {
  T real;
  T imaginary;
};

// Every byte but 0 is true; 0 or 1 is stored.
struct Boolean : Plain<uint8_t> {
  DMLCOMM_ALWAYS_INLINE static Value load(const uint8_t* from) {
    const Value bytes = load_as<Value>(from);
    return bytes != 0 ? Value{} + 1 : Value{};
  }
};

// bf16 is the upper half of f32, so two neighbours in memory are one 32-bit lane: the odd one is
// its upper half, and the even one becomes that by a shift. No lane moves, which is what widening
// and narrowing vectors would cost.
struct F32Pair {
  F32 even;
  F32 odd;
};

struct BFloat16 {
  static constexpr size_t kLanes = 2 * kF32Lanes;
  static constexpr size_t kRawBytes = 2;
  using Scalar = float;
  using Value = F32Pair;

  DMLCOMM_ALWAYS_INLINE static F32Pair load(const uint8_t* from) {
    const U32 both = load_as<U32>(from);
    return {value_of(both << 16), value_of(both & kUpperHalf)};
  }

  DMLCOMM_ALWAYS_INLINE static void store(uint8_t* to, F32Pair value) {
    store_as(to, (rounded(value.even) >> 16) | (rounded(value.odd) & kUpperHalf));
  }

  // Adding half of the last kept place, less one if that place is even, carries into it exactly
  // when round-to-nearest-even rounds up. A NaN could be carried into infinity, so it is replaced.
  // AVX512-BF16's own instruction is not used: it takes subnormal numbers for zero.
  DMLCOMM_ALWAYS_INLINE static U32 rounded(F32 value) {
    const U32 bits = bits_of(value);
    const U32 sum = bits + 0x7fff + ((bits >> 16) & 1);
    return value != value ? every_lane(kNan) : sum;
  }

 private:
  static constexpr uint32_t kUpperHalf = 0xffff0000;
  static constexpr uint32_t kNan = 0x7fc00000;
};

// bf16 with the lanes in the order of memory, for loops in which it meets vectors of f32.
struct BFloat16InOrder {
  static constexpr size_t kLanes = kF32Lanes;
  static constexpr size_t kRawBytes = 2;
  using Raw = Vector<uint16_t, kLanes>;
  using Scalar = float;
  using Value = F32;

  DMLCOMM_ALWAYS_INLINE static F32 load(const uint8_t* from) {
    return value_of(__builtin_convertvector(load_as<Raw>(from), U32) << 16);
  }
  DMLCOMM_ALWAYS_INLINE static void store(uint8_t* to, F32 value) {
    store_upper_halves(to, BFloat16::rounded(value));
  }

 private:
  // Where the halves of two vectors are packed into one by an instruction, that one saturates,
  // which does nothing to 16 bits with their sign extended. Compilers need several for a plain
  // narrowing.
  DMLCOMM_ALWAYS_INLINE static void store_upper_halves(uint8_t* to, U32 bits) {
#if defined(__AVX2__) && !defined(__AVX512F__)
    const __m256i halves = _mm256_srai_epi32(__builtin_bit_cast(__m256i, bits), 16);
    store_as(to,
             _mm_packs_epi32(_mm256_castsi256_si128(halves), _mm256_extracti128_si256(halves, 1)));
#elif defined(__x86_64__) && !defined(__AVX512F__)
    const __m128i halves = _mm_srai_epi32(__builtin_bit_cast(__m128i, bits), 16);
    const __m128i packed = _mm_packs_epi32(halves, halves);
    __builtin_memcpy(to, &packed, sizeof(Raw));
#else
    store_as(to, __builtin_convertvector(bits >> 16, Raw));
#endif
  }
};

// A small format with a sign, kExponentBits with the usual bias and kMantissaBits with subnormal
// numbers. kHasInfinity: the highest exponent holds infinity and NaN, as in IEEE 754, and too
// large numbers become infinity; otherwise that exponent holds numbers too, only the code with
// every bit set is NaN (the "fn" formats), and too large numbers become the largest one. kNan: the
// code for NaN.
template <typename Code, int kExponentBits, int kMantissaBits, bool kHasInfinity, uint32_t kNan>
struct SmallFloat {
  static constexpr size_t kLanes = kF32Lanes;
  static constexpr size_t kRawBytes = sizeof(Code);
  using Raw = Vector<Code, kLanes>;
  using Scalar = float;
  using Value = F32;

  static constexpr int kSignBit = kExponentBits + kMantissaBits;
  static constexpr int kShift = 23 - kMantissaBits;  // from our mantissa to f32's
  static constexpr uint32_t kBias = (1u << (kExponentBits - 1)) - 1;
  static constexpr uint32_t kRebias = (127 - kBias) << 23;
  static constexpr uint32_t kSmallestNormal = (128 - kBias) << 23;
  static constexpr uint32_t kF32Infinity = 0xffu << 23;
  static constexpr uint32_t kInfinity = ((1u << kExponentBits) - 1) << kMantissaBits;
  static constexpr uint32_t kOverflow = kHasInfinity ? kInfinity : kNan - 1;
  // As f32: from here on a number becomes kOverflow. With infinity a number half a step below has
  // been rounded to its code already; without, it must not be rounded up to the code of NaN.
  static constexpr uint32_t kTooLarge =
      (kOverflow << kShift) + kRebias + (kHasInfinity ? 0 : 1u << (kShift - 1));

  // A subnormal number has exponent code 0 and the scale of code 1, without the hidden bit: read it
  // as code 1, with the hidden bit, and subtract that bit's value. Exact, and no operand is an f32
  // subnormal, which a thread may be set to flush to zero.
  DMLCOMM_ALWAYS_INLINE static F32 load(const uint8_t* from) {
    const U32 code = __builtin_convertvector(load_as<Raw>(from), U32);
    const U32 magnitude = code & ((1u << kSignBit) - 1);
    const U32 normal = (magnitude << kShift) + kRebias;
    const F32 hidden_bit = value_of(every_lane(kSmallestNormal));
    const U32 subnormal = bits_of(value_of(normal + (1u << 23)) - hidden_bit);
    const U32 special = normal | kF32Infinity;
    const U32 first_special = every_lane(kHasInfinity ? kInfinity : kNan);
    const U32 finite = magnitude < (1u << kMantissaBits) ? subnormal : normal;
    const U32 sign = (code >> kSignBit) << 31;
    return value_of((magnitude >= first_special ? special : finite) | sign);
  }

  // Normal numbers: as for bf16. Subnormal ones: adding the power of two whose last place is our
  // smallest step lets the addition itself round, and leaves the code in the lowest bits.
  DMLCOMM_ALWAYS_INLINE static void store(uint8_t* to, F32 value) {
    constexpr uint32_t kStep = (127 - kBias + kShift + 1) << 23;
    const U32 bits = bits_of(value);
    const U32 magnitude = bits & 0x7fffffff;
    const U32 odd = (magnitude >> kShift) & 1;
    const U32 normal = (magnitude - kRebias + ((1u << (kShift - 1)) - 1) + odd) >> kShift;
    const U32 subnormal = bits_of(value_of(magnitude) + value_of(every_lane(kStep))) - kStep;
    const U32 finite = magnitude < kSmallestNormal ? subnormal : normal;
    const U32 special = magnitude > kF32Infinity ? every_lane(kNan) : every_lane(kOverflow);
    const U32 result = magnitude >= kTooLarge ? special : finite;
    store_as(to, __builtin_convertvector(result | ((bits >> 31) << kSignBit), Raw));
  }
};

// As torch's Float8_e4m3fn (which saturates since torch 2.15; it gave NaN before) and Float8_e5m2.
using Float8E4M3 = SmallFloat<uint8_t, 4, 3, false, 0x7f>;
using Float8E5M2 = SmallFloat<uint8_t, 5, 2, true, 0x7f>;

// IEEE 754 half precision: by instruction where there is one.
struct Float16 : SmallFloat<uint16_t, 5, 10, true, 0x7e00> {
#if defined(__AVX512F__)
  DMLCOMM_ALWAYS_INLINE static F32 load(const uint8_t* from) {
    // The form with a mask (all lanes): g++ warns about an uninitialised value inside the other
    // one.
    return __builtin_bit_cast(F32, _mm512_maskz_cvtph_ps(0xffff, load_as<__m256i>(from)));
  }
  DMLCOMM_ALWAYS_INLINE static void store(uint8_t* to, F32 value) {
    const auto wide = __builtin_bit_cast(__m512, value);
    store_as(to,
             _mm512_maskz_cvtps_ph(0xffff, wide, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  }
#elif defined(__F16C__)
  DMLCOMM_ALWAYS_INLINE static F32 load(const uint8_t* from) {
    return __builtin_bit_cast(F32, _mm256_cvtph_ps(load_as<__m128i>(from)));
  }
  DMLCOMM_ALWAYS_INLINE static void store(uint8_t* to, F32 value) {
    const auto wide = __builtin_bit_cast(__m256, value);
    store_as(to, _mm256_cvtps_ph(wide, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  }
#elif defined(__aarch64__)
  DMLCOMM_ALWAYS_INLINE static F32 load(const uint8_t* from) {
    return __builtin_bit_cast(F32, vcvt_f32_f16(load_as<float16x4_t>(from)));
  }
  DMLCOMM_ALWAYS_INLINE static void store(uint8_t* to, F32 value) {
    store_as(to, vcvt_f16_f32(__builtin_bit_cast(float32x4_t, value)));
  }
#endif
};

}  // namespace
}  // namespace dmlcomm::kernels
