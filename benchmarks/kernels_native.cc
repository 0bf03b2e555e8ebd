#include "kernels_native.h"

namespace dmlcomm::bench {
namespace {

template <typename T>
void sum_2(T* __restrict dst, const T* __restrict a, const T* __restrict b, size_t count) {
  for (size_t i = 0; i < count; ++i) dst[i] = a[i] + b[i];
}

template <typename T>
void sum_3(T* __restrict dst, const T* __restrict a, const T* __restrict b, const T* __restrict c,
           size_t count) {
  for (size_t i = 0; i < count; ++i) dst[i] = a[i] + b[i] + c[i];
}

template <typename T>
void sum_4(T* __restrict dst, const T* __restrict a, const T* __restrict b, const T* __restrict c,
           const T* __restrict d, size_t count) {
  for (size_t i = 0; i < count; ++i) dst[i] = a[i] + b[i] + c[i] + d[i];
}

template <typename T>
void sum(T* dst, const T* const* srcs, size_t num_srcs, size_t count) {
  if (num_srcs == 2) sum_2(dst, srcs[0], srcs[1], count);
  if (num_srcs == 3) sum_3(dst, srcs[0], srcs[1], srcs[2], count);
  if (num_srcs == 4) sum_4(dst, srcs[0], srcs[1], srcs[2], srcs[3], count);
}

}  // namespace

void native_sum(float* dst, const float* const* srcs, size_t num_srcs, size_t count) {
  sum(dst, srcs, num_srcs, count);
}

void native_sum(double* dst, const double* const* srcs, size_t num_srcs, size_t count) {
  sum(dst, srcs, num_srcs, count);
}

void native_sum(int32_t* dst, const int32_t* const* srcs, size_t num_srcs, size_t count) {
  sum(dst, srcs, num_srcs, count);
}

}  // namespace dmlcomm::bench
