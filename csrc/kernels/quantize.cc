#include "kernels/quantize.h"

#include "kernels/dispatch.h"

namespace dmlcomm::kernels {

bool supports_quantize(DType codes) { return find(best_table().quantize, codes) != nullptr; }

void quantize(void* dst, void* error, const QuantizeInput& input, size_t count, DType codes) {
  get(best_table().quantize, codes)(dst, error, input, count);
}

void dequantize(void* dst, const void* src, size_t count, DType codes) {
  get(best_table().dequantize, codes)(dst, src, count);
}

}  // namespace dmlcomm::kernels
