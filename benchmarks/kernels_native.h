// The loop anyone would write, as the compiler vectorises it for this very machine (-O3
// -march=native): what the dispatched kernels are compared with.
#pragma once

#include <cstddef>
#include <cstdint>

namespace dmlcomm::bench {

// dst[i] = srcs[0][i] + ... + srcs[num_srcs-1][i]; num_srcs is 2, 3 or 4; the buffers do not
// overlap.
void native_sum(float* dst, const float* const* srcs, size_t num_srcs, size_t count);
void native_sum(double* dst, const double* const* srcs, size_t num_srcs, size_t count);
void native_sum(int32_t* dst, const int32_t* const* srcs, size_t num_srcs, size_t count);

}  // namespace dmlcomm::bench
