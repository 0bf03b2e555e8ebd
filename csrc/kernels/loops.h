// The loops: operators on vectors, and one pass over several sources. See elements.h for the rules.
//
// A pack is the elements of one vector. A loop takes kUnroll packs at a time, combines all sources
// of them in registers and stores the result once: memory is read once per source and written once,
// whatever the number of sources, and a destination that is one of the sources has been read before
// it is written.
#pragma once

#include "kernels/elements.h"

namespace dmlcomm::kernels {
namespace {

// Four packs hide the latency of the loads, and their accumulators fit the 16 registers of AVX2
// with room for the conversions of 16-bit floats.
constexpr size_t kUnroll = 4;

// --- operators: on vectors, and sum and product on single values. Integers are unsigned, because
// unsigned arithmetic wraps; only min and max see signed ones.

struct Sum {
  template <typename V>
  DMLCOMM_ALWAYS_INLINE static V apply(V a, V b) {
    return static_cast<V>(a + b);
  }
};

struct Product {
  template <typename V>
  DMLCOMM_ALWAYS_INLINE static V apply(V a, V b) {
    return a * b;
  }
  template <typename T>
  DMLCOMM_ALWAYS_INLINE static ComplexNumber<T> apply(ComplexNumber<T> a, ComplexNumber<T> b) {
    return {a.real * b.real - a.imaginary * b.imaginary,
            a.real * b.imaginary + a.imaginary * b.real};
  }
};

// A comparison with NaN is false, so that `b` wins: right if b is the NaN, and a is put back if it
// is.
struct Min {
  template <typename V>
  DMLCOMM_ALWAYS_INLINE static V apply(V a, V b) {
    const V smaller = a < b ? a : b;
    return a != a ? a : smaller;
  }
};

struct Max {
  template <typename V>
  DMLCOMM_ALWAYS_INLINE static V apply(V a, V b) {
    const V larger = a > b ? a : b;
    return a != a ? a : larger;
  }
};

struct BitAnd {
  template <typename V>
  DMLCOMM_ALWAYS_INLINE static V apply(V a, V b) {
    return a & b;
  }
};

struct BitOr {
  template <typename V>
  DMLCOMM_ALWAYS_INLINE static V apply(V a, V b) {
    return a | b;
  }
};

struct BitXor {
  template <typename V>
  DMLCOMM_ALWAYS_INLINE static V apply(V a, V b) {
    return a ^ b;
  }
};

// --- what happens to the combined value before it is rounded and stored

struct Keep {
  template <typename V>
  DMLCOMM_ALWAYS_INLINE V operator()(V value) const {
    return value;
  }
};

template <typename Scalar>
struct Multiply {
  Scalar factor;
  template <typename V>
  DMLCOMM_ALWAYS_INLINE V operator()(V value) const {
    return value * factor;
  }
};

template <typename Scalar>
struct Divide {
  Scalar divisor;
  template <typename V>
  DMLCOMM_ALWAYS_INLINE V operator()(V value) const {
    return value / divisor;
  }
};

// Integers: the sum was wrapped as unsigned; `Signed` is what it means. 64 bits, because a small
// type does not hold every divisor.
template <typename Integer, typename Wide>
struct TruncatedDivide {
  uint64_t divisor;
  template <typename V>
  DMLCOMM_ALWAYS_INLINE V operator()(V value) const {
    const auto quotient =
        static_cast<Wide>(static_cast<Integer>(value)) / static_cast<Wide>(divisor);
    return static_cast<V>(quotient);
  }
};

// --- one step for every kind of value

template <typename Op, typename V>
DMLCOMM_ALWAYS_INLINE V combine(V a, V b) {
  return Op::apply(a, b);
}

template <typename Op>
DMLCOMM_ALWAYS_INLINE F32Pair combine(F32Pair a, F32Pair b) {
  return {Op::apply(a.even, b.even), Op::apply(a.odd, b.odd)};
}

template <typename Finish, typename V>
DMLCOMM_ALWAYS_INLINE V finished(Finish finish, V value) {
  return finish(value);
}

template <typename Finish>
DMLCOMM_ALWAYS_INLINE F32Pair finished(Finish finish, F32Pair value) {
  return {finish(value.even), finish(value.odd)};
}

// --- loops

template <typename Element, typename Op, size_t kPacks, typename Finish>
DMLCOMM_ALWAYS_INLINE void reduce_packs(uint8_t* dst, const uint8_t* const* srcs, size_t num_srcs,
                                        size_t offset, Finish finish) {
  constexpr size_t kPackBytes = Element::kLanes * Element::kRawBytes;
  typename Element::Value values[kPacks];
#pragma GCC unroll 4
  for (size_t p = 0; p < kPacks; ++p) {
    values[p] = Element::load(srcs[0] + offset + p * kPackBytes);
  }
  for (size_t k = 1; k < num_srcs; ++k) {
    const uint8_t* const src = srcs[k] + offset;
#pragma GCC unroll 4
    for (size_t p = 0; p < kPacks; ++p) {
      values[p] = combine<Op>(values[p], Element::load(src + p * kPackBytes));
    }
  }
#pragma GCC unroll 4
  for (size_t p = 0; p < kPacks; ++p) {
    Element::store(dst + offset + p * kPackBytes, finished(finish, values[p]));
  }
}

// Reduces whole blocks of kUnroll packs and returns how many bytes that was. kNumSrcs is the number
// of sources where the compiler shall know it (their pointers stay in registers), otherwise 0.
template <typename Element, typename Op, size_t kNumSrcs, typename Finish>
size_t reduce_blocks(uint8_t* dst, const uint8_t* const* srcs, size_t num_srcs, size_t bytes,
                     Finish finish) {
  constexpr size_t kBlockBytes = kUnroll * Element::kLanes * Element::kRawBytes;
  const size_t end = bytes - bytes % kBlockBytes;
  if constexpr (kNumSrcs == 0) {
    for (size_t offset = 0; offset < end; offset += kBlockBytes) {
      reduce_packs<Element, Op, kUnroll>(dst, srcs, num_srcs, offset, finish);
    }
  } else {
    const uint8_t* fixed[kNumSrcs];
    for (size_t k = 0; k < kNumSrcs; ++k) fixed[k] = srcs[k];
    for (size_t offset = 0; offset < end; offset += kBlockBytes) {
      reduce_packs<Element, Op, kUnroll>(dst, fixed, kNumSrcs, offset, finish);
    }
  }
  return end;
}

// The last elements, fewer than a pack: through a pack-sized copy, so that nothing beyond a buffer
// is touched and the arithmetic is the same as everywhere else.
template <typename Element, typename Op, typename Finish>
void reduce_tail(uint8_t* dst, const uint8_t* const* srcs, size_t num_srcs, size_t offset,
                 size_t bytes, Finish finish) {
  uint8_t copy[Element::kLanes * Element::kRawBytes] = {};
  __builtin_memcpy(copy, srcs[0] + offset, bytes);
  typename Element::Value value = Element::load(copy);
  for (size_t k = 1; k < num_srcs; ++k) {
    __builtin_memcpy(copy, srcs[k] + offset, bytes);
    value = combine<Op>(value, Element::load(copy));
  }
  Element::store(copy, finished(finish, value));
  __builtin_memcpy(dst + offset, copy, bytes);
}

template <typename Element, typename Op, typename Finish>
void reduce_all(void* dst_memory, const void* const* src_memory, size_t num_srcs, size_t count,
                Finish finish) {
  constexpr size_t kPackBytes = Element::kLanes * Element::kRawBytes;
  auto* const dst = static_cast<uint8_t*>(dst_memory);
  auto* const srcs = reinterpret_cast<const uint8_t* const*>(src_memory);
  const size_t bytes = count * Element::kRawBytes;
  size_t done = 0;
  switch (num_srcs) {
    case 2: done = reduce_blocks<Element, Op, 2>(dst, srcs, num_srcs, bytes, finish); break;
    case 3: done = reduce_blocks<Element, Op, 3>(dst, srcs, num_srcs, bytes, finish); break;
    case 4: done = reduce_blocks<Element, Op, 4>(dst, srcs, num_srcs, bytes, finish); break;
    default: done = reduce_blocks<Element, Op, 0>(dst, srcs, num_srcs, bytes, finish);
  }
  for (; bytes - done >= kPackBytes; done += kPackBytes) {
    reduce_packs<Element, Op, 1>(dst, srcs, num_srcs, done, finish);
  }
  if (done < bytes) reduce_tail<Element, Op>(dst, srcs, num_srcs, done, bytes - done, finish);
}

}  // namespace
}  // namespace dmlcomm::kernels
