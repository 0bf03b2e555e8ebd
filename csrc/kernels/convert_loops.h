// The loop of conversions. See elements.h for the rules.
#pragma once

#include "kernels/elements.h"

namespace dmlcomm::kernels {
namespace {

// Instructions keep some bits of a NaN and arithmetic keeps others: one NaN for all of them.
DMLCOMM_ALWAYS_INLINE F32 with_one_nan(F32 value) {
  constexpr uint32_t kQuietNan = 0x7fc00000;
  return value != value ? value_of(every_lane(kQuietNan)) : value;
}

// Formats that store one NaN only, by themselves.
template <typename Element>
constexpr bool kStoresOneNan = false;
template <>
constexpr bool kStoresOneNan<BFloat16InOrder> = true;

template <typename To, typename From>
DMLCOMM_ALWAYS_INLINE void convert_pack(uint8_t* to, const uint8_t* from) {
  static_assert(To::kLanes == From::kLanes);
  const F32 value = From::load(from);
  To::store(to, kStoresOneNan<To> ? value : with_one_nan(value));
}

// Whole packs, and the last elements through pack-sized copies, as in loops.h.
template <typename To, typename From>
void convert_all(void* dst_memory, const void* src_memory, size_t count) {
  constexpr size_t kLanes = To::kLanes;
  auto* const dst = static_cast<uint8_t*>(dst_memory);
  const auto* const src = static_cast<const uint8_t*>(src_memory);
  const size_t end = count - count % kLanes;
#pragma GCC unroll 4
  for (size_t i = 0; i < end; i += kLanes) {
    convert_pack<To, From>(dst + i * To::kRawBytes, src + i * From::kRawBytes);
  }
  if (end == count) return;
  uint8_t from[kLanes * From::kRawBytes] = {};
  uint8_t to[kLanes * To::kRawBytes];
  __builtin_memcpy(from, src + end * From::kRawBytes, (count - end) * From::kRawBytes);
  convert_pack<To, From>(to, from);
  __builtin_memcpy(dst + end * To::kRawBytes, to, (count - end) * To::kRawBytes);
}

}  // namespace
}  // namespace dmlcomm::kernels
