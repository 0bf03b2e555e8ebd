#include "kernels/convert.h"

#include <cstring>

#include "base/check.h"
#include "kernels/dispatch.h"

namespace dmlcomm::kernels {
namespace {

// nullptr for what is not defined (a copy has no function), and for numbers that name no type.
ConvertFunction find_convert(DType to, DType from) {
  const auto to_index = static_cast<size_t>(to);
  const auto from_index = static_cast<size_t>(from);
  if (to_index >= kNumDTypes || from_index >= kNumDTypes) return nullptr;
  if (to == DType::f32) return best_table().to_f32[from_index];
  if (from == DType::f32) return best_table().from_f32[to_index];
  return nullptr;
}

}  // namespace

bool supports_convert(DType to, DType from) {
  if (to == from) return size_of(to) != 0;
  return find_convert(to, from) != nullptr;
}

void convert(void* dst, DType to, const void* src, DType from, size_t count) {
  DMLCOMM_CHECK(supports_convert(to, from));
  if (count == 0) return;
  if (to == from) {
    std::memcpy(dst, src, count * size_of(to));
  } else {
    find_convert(to, from)(dst, src, count);
  }
}

}  // namespace dmlcomm::kernels
