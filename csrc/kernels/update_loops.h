// The loops of updates: the update of one pack of every array, and the pass over all of them. See
// elements.h for the rules, update.h for the formulas.
#pragma once

#include "kernels/loops.h"
#include "kernels/update.h"

namespace dmlcomm::kernels {
namespace {

using F64 = Vector<double, kVectorBytes / sizeof(double)>;

// --- square roots: exact to the last place on every instruction set, as IEEE 754 demands

#if defined(__AVX512F__)
// With a mask (all lanes), as in Float16.
DMLCOMM_ALWAYS_INLINE F32 square_root(F32 value) {
  return __builtin_bit_cast(F32, _mm512_maskz_sqrt_ps(0xffff, __builtin_bit_cast(__m512, value)));
}
DMLCOMM_ALWAYS_INLINE F64 square_root(F64 value) {
  return __builtin_bit_cast(F64, _mm512_maskz_sqrt_pd(0xff, __builtin_bit_cast(__m512d, value)));
}
#elif defined(__AVX2__)
DMLCOMM_ALWAYS_INLINE F32 square_root(F32 value) {
  return __builtin_bit_cast(F32, _mm256_sqrt_ps(__builtin_bit_cast(__m256, value)));
}
DMLCOMM_ALWAYS_INLINE F64 square_root(F64 value) {
  return __builtin_bit_cast(F64, _mm256_sqrt_pd(__builtin_bit_cast(__m256d, value)));
}
#elif defined(__x86_64__)
DMLCOMM_ALWAYS_INLINE F32 square_root(F32 value) {
  return __builtin_bit_cast(F32, _mm_sqrt_ps(__builtin_bit_cast(__m128, value)));
}
DMLCOMM_ALWAYS_INLINE F64 square_root(F64 value) {
  return __builtin_bit_cast(F64, _mm_sqrt_pd(__builtin_bit_cast(__m128d, value)));
}
#elif defined(__aarch64__)
DMLCOMM_ALWAYS_INLINE F32 square_root(F32 value) {
  return __builtin_bit_cast(F32, vsqrtq_f32(__builtin_bit_cast(float32x4_t, value)));
}
DMLCOMM_ALWAYS_INLINE F64 square_root(F64 value) {
  return __builtin_bit_cast(F64, vsqrtq_f64(__builtin_bit_cast(float64x2_t, value)));
}
#else
DMLCOMM_ALWAYS_INLINE F32 square_root(F32 value) {
  for (size_t i = 0; i < kF32Lanes; ++i) value[i] = __builtin_sqrtf(value[i]);
  return value;
}
DMLCOMM_ALWAYS_INLINE F64 square_root(F64 value) {
  for (size_t i = 0; i < kVectorBytes / sizeof(double); ++i) value[i] = __builtin_sqrt(value[i]);
  return value;
}
#endif

// --- what happens to one pack: values[0] is the weights, the state follows
//
// A term that is switched off is left out, not multiplied with 0: the product with an infinite
// weight would be NaN.

enum class Momentum { none, heavy_ball, nesterov };

template <typename T, Momentum kMomentum, bool kDecays>
struct SgdPack {
  T scale, rate, weight_decay, momentum, kept, share;

  explicit SgdPack(const SgdStep& step)
      : scale(static_cast<T>(step.scale)),
        rate(static_cast<T>(step.rate)),
        weight_decay(static_cast<T>(step.weight_decay)),
        momentum(static_cast<T>(step.momentum)),
        kept(static_cast<T>(step.kept)),
        share(static_cast<T>(step.share)) {}

  template <typename V>
  DMLCOMM_ALWAYS_INLINE void operator()(V* values, V gradient) const {
    V direction = gradient * scale;
    if constexpr (kDecays) direction += values[0] * weight_decay;
    if constexpr (kMomentum != Momentum::none) {
      values[1] = values[1] * kept + direction * share;
      const bool nesterov = kMomentum == Momentum::nesterov;
      direction = nesterov ? direction + values[1] * momentum : values[1];
    }
    values[0] -= direction * rate;
  }
};

template <typename T, bool kGradientDecays>
struct AdamPack {
  T scale, rate, share1, beta2, share2, root_factor, eps, gradient_decay, kept_weight;

  explicit AdamPack(const AdamStep& step)
      : scale(static_cast<T>(step.scale)),
        rate(static_cast<T>(step.rate)),
        share1(static_cast<T>(1 - step.beta1)),
        beta2(static_cast<T>(step.beta2)),
        share2(static_cast<T>(1 - step.beta2)),
        root_factor(static_cast<T>(step.root_factor)),
        eps(static_cast<T>(step.eps)),
        gradient_decay(static_cast<T>(step.gradient_decay)),
        kept_weight(static_cast<T>(step.kept_weight)) {}

  template <typename V>
  DMLCOMM_ALWAYS_INLINE void operator()(V* values, V gradient) const {
    gradient *= scale;
    if constexpr (kGradientDecays) gradient += values[0] * gradient_decay;
    values[1] += (gradient - values[1]) * share1;
    values[2] = values[2] * beta2 + gradient * share2 * gradient;
    const V root = square_root(values[2]) * root_factor + eps;
    values[0] = values[0] * kept_weight - values[1] * rate / root;
  }
};

template <typename T, bool kDecays>
struct AdagradPack {
  T scale, rate, weight_decay, eps;

  explicit AdagradPack(const AdagradStep& step)
      : scale(static_cast<T>(step.scale)),
        rate(static_cast<T>(step.rate)),
        weight_decay(static_cast<T>(step.weight_decay)),
        eps(static_cast<T>(step.eps)) {}

  template <typename V>
  DMLCOMM_ALWAYS_INLINE void operator()(V* values, V gradient) const {
    gradient *= scale;
    if constexpr (kDecays) gradient += values[0] * weight_decay;
    values[1] += gradient * gradient;
    values[0] -= gradient * rate / (square_root(values[1]) + eps);
  }
};

template <typename T>
struct AddScaledPack {
  Multiply<T> scale;

  template <typename V>
  DMLCOMM_ALWAYS_INLINE void operator()(V* values, V gradient) const {
    values[0] = combine<Sum>(values[0], finished(scale, gradient));
  }
};

// --- the pass

template <typename Element, size_t kArrays, typename Pack>
DMLCOMM_ALWAYS_INLINE void update_pack(uint8_t* const* arrays, const uint8_t* gradient,
                                       size_t offset, const Pack& pack) {
  typename Element::Value values[kArrays];
#pragma GCC unroll 3
  for (size_t a = 0; a < kArrays; ++a) values[a] = Element::load(arrays[a] + offset);
  pack(values, Element::load(gradient + offset));
#pragma GCC unroll 3
  for (size_t a = 0; a < kArrays; ++a) Element::store(arrays[a] + offset, values[a]);
}

// One pack at a time: packs do not depend on each other, so the CPU overlaps them by itself. The
// last elements go through pack-sized copies, as in loops.h.
template <typename Element, size_t kArrays, typename Pack>
void update_all(void* const* array_memory, const void* gradient_memory, size_t count, Pack pack) {
  constexpr size_t kPackBytes = Element::kLanes * Element::kRawBytes;
  const auto* const gradient = static_cast<const uint8_t*>(gradient_memory);
  uint8_t* arrays[kArrays];
  for (size_t a = 0; a < kArrays; ++a) arrays[a] = static_cast<uint8_t*>(array_memory[a]);
  const size_t bytes = count * Element::kRawBytes;
  const size_t end = bytes - bytes % kPackBytes;
  for (size_t offset = 0; offset < end; offset += kPackBytes) {
    update_pack<Element, kArrays>(arrays, gradient, offset, pack);
  }
  if (end == bytes) return;
  uint8_t last_gradient[kPackBytes] = {};
  uint8_t last[kArrays][kPackBytes] = {};
  uint8_t* last_arrays[kArrays];
  __builtin_memcpy(last_gradient, gradient + end, bytes - end);
  for (size_t a = 0; a < kArrays; ++a) {
    last_arrays[a] = last[a];
    __builtin_memcpy(last[a], arrays[a] + end, bytes - end);
  }
  update_pack<Element, kArrays>(last_arrays, last_gradient, 0, pack);
  for (size_t a = 0; a < kArrays; ++a) __builtin_memcpy(arrays[a] + end, last[a], bytes - end);
}

template <typename Element, bool kDecays>
void sgd_decided(void* const* arrays, const void* gradient, size_t count, const SgdStep& step) {
  using T = typename Element::Scalar;
  if (step.momentum == 0) {
    update_all<Element, 1>(arrays, gradient, count, SgdPack<T, Momentum::none, kDecays>(step));
  } else if (step.nesterov) {
    update_all<Element, 2>(arrays, gradient, count, SgdPack<T, Momentum::nesterov, kDecays>(step));
  } else {
    update_all<Element, 2>(arrays, gradient, count,
                           SgdPack<T, Momentum::heavy_ball, kDecays>(step));
  }
}

template <typename Element>
void sgd_with(void* const* arrays, const void* gradient, size_t count, const SgdStep& step) {
  if (step.weight_decay == 0) {
    sgd_decided<Element, false>(arrays, gradient, count, step);
  } else {
    sgd_decided<Element, true>(arrays, gradient, count, step);
  }
}

template <typename Element>
void adam_with(void* const* arrays, const void* gradient, size_t count, const AdamStep& step) {
  using T = typename Element::Scalar;
  if (step.gradient_decay == 0) {
    update_all<Element, 3>(arrays, gradient, count, AdamPack<T, false>(step));
  } else {
    update_all<Element, 3>(arrays, gradient, count, AdamPack<T, true>(step));
  }
}

template <typename Element>
void adagrad_with(void* const* arrays, const void* gradient, size_t count,
                  const AdagradStep& step) {
  using T = typename Element::Scalar;
  if (step.weight_decay == 0) {
    update_all<Element, 2>(arrays, gradient, count, AdagradPack<T, false>(step));
  } else {
    update_all<Element, 2>(arrays, gradient, count, AdagradPack<T, true>(step));
  }
}

template <typename Element>
void add_scaled_with(void* weights, const void* gradient, size_t count, double scale) {
  using T = typename Element::Scalar;
  void* const arrays[] = {weights};
  update_all<Element, 1>(arrays, gradient, count, AddScaledPack<T>{{static_cast<T>(scale)}});
}

}  // namespace
}  // namespace dmlcomm::kernels
