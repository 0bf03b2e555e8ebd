// The arithmetic that the kernels' tests expect: one element at a time, from the definition of each
// format, sharing no code with the kernels.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/dtype.h"

namespace dmlcomm::test {

using Bytes = std::vector<uint8_t>;

// What kernels::reduce must give for these sources of `count` elements.
Bytes reference_reduce(const std::vector<Bytes>& srcs, size_t count, DType dtype, ReduceOp op,
                       uint64_t divisor);

// What kernels::scale must give.
Bytes reference_scale(const Bytes& src, size_t count, DType dtype, double factor);

// Elements of the type from numbers (rounded to it), and the real part of an element as a number.
Bytes encode(DType dtype, const std::vector<double>& numbers);
double decode(DType dtype, const Bytes& elements, size_t index);

// Whether the elements are equal: bit by bit for integers and bool; floating-point numbers by
// value, so that 0 is equal to -0, and NaN is equal to NaN.
bool equal_elements(DType dtype, const uint8_t* a, const uint8_t* b);

}  // namespace dmlcomm::test
