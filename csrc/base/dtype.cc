#include "base/dtype.h"

namespace dmlcomm {

size_t size_of(DType dtype) {
  switch (dtype) {
#define DMLCOMM_DTYPE_SIZE(name, bytes) \
  case DType::name: return bytes;
    DMLCOMM_DTYPES(DMLCOMM_DTYPE_SIZE)
#undef DMLCOMM_DTYPE_SIZE
  }
  return 0;  // a number that came from the wire and names no type
}

const char* to_string(DType dtype) {
  switch (dtype) {
#define DMLCOMM_DTYPE_NAME(name, bytes) \
  case DType::name: return #name;
    DMLCOMM_DTYPES(DMLCOMM_DTYPE_NAME)
#undef DMLCOMM_DTYPE_NAME
  }
  return "unknown_dtype";
}

const char* to_string(ReduceOp op) {
  switch (op) {
#define DMLCOMM_REDUCE_OP_NAME(name) \
  case ReduceOp::name: return #name;
    DMLCOMM_REDUCE_OPS(DMLCOMM_REDUCE_OP_NAME)
#undef DMLCOMM_REDUCE_OP_NAME
  }
  return "unknown_reduce_op";
}

}  // namespace dmlcomm
