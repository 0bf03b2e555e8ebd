// Element types and reduction operators: the vocabulary that kernels, schedules and wire headers
// share. The numbers are part of the wire format (OpInfo): append, never reorder.
#pragma once

#include <cstddef>
#include <cstdint>

namespace dmlcomm {

// One list makes enum, names and sizes: X(name, bytes).
#define DMLCOMM_DTYPES(X) \
  X(u8, 1)                \
  X(i8, 1)                \
  X(u16, 2)               \
  X(i16, 2)               \
  X(u32, 4)               \
  X(i32, 4)               \
  X(u64, 8)               \
  X(i64, 8)               \
  X(f16, 2)               \
  X(bf16, 2)              \
  X(f32, 4)               \
  X(f64, 8)               \
  X(c64, 8)               \
  X(c128, 16)             \
  X(boolean, 1)           \
  X(f8e4m3, 1)            \
  X(f8e5m2, 1)

enum class DType : uint8_t {
#define DMLCOMM_DTYPE_ENUM(name, bytes) name,
  DMLCOMM_DTYPES(DMLCOMM_DTYPE_ENUM)
#undef DMLCOMM_DTYPE_ENUM
};

#define DMLCOMM_COUNT_ONE(...) +1
constexpr size_t kNumDTypes = 0 DMLCOMM_DTYPES(DMLCOMM_COUNT_ONE);

// One list makes enum and names. `avg` is `sum` followed by a division by the number of ranks.
// PREMUL_SUM is kernels::scale on every rank's input followed by `sum`.
#define DMLCOMM_REDUCE_OPS(X) X(sum) X(avg) X(product) X(min) X(max) X(band) X(bor) X(bxor)

enum class ReduceOp : uint8_t {
#define DMLCOMM_REDUCE_OP_ENUM(name) name,
  DMLCOMM_REDUCE_OPS(DMLCOMM_REDUCE_OP_ENUM)
#undef DMLCOMM_REDUCE_OP_ENUM
};

constexpr size_t kNumReduceOps = 0 DMLCOMM_REDUCE_OPS(DMLCOMM_COUNT_ONE);
#undef DMLCOMM_COUNT_ONE

size_t size_of(DType dtype);
const char* to_string(DType dtype);
const char* to_string(ReduceOp op);

}  // namespace dmlcomm
