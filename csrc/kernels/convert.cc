#include "kernels/convert.h"

#include <cstring>

#include "base/check.h"
#include "kernels/dispatch.h"

namespace dmlcomm::kernels {
namespace {

// nullptr for what is not defined (a copy has no function), and for numbers that name no type.
ConvertFunction find_convert(DType to, DType from) {
  if (to == DType::f32) return find(best_table().to_f32, from);
  return from == DType::f32 ? find(best_table().from_f32, to) : nullptr;
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
