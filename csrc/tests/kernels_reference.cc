#include "tests/kernels_reference.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>

namespace dmlcomm::test {
namespace {

// Each format: Number, the type it is computed in, and get and put of one element.

template <typename T>
struct PlainFormat {
  using Number = T;
  static constexpr size_t kBytes = sizeof(T);
  static T get(const uint8_t* from) {
    T value;
    std::memcpy(&value, from, sizeof(value));
    return value;
  }
  static void put(uint8_t* to, T value) { std::memcpy(to, &value, sizeof(value)); }
};

struct BoolFormat {
  using Number = bool;
  static constexpr size_t kBytes = 1;
  static bool get(const uint8_t* from) { return *from != 0; }
  static void put(uint8_t* to, bool value) { *to = value ? 1 : 0; }
};

template <typename T>
struct ComplexValue {
  T real;
  T imaginary;
};

// A floating-point format by its definition: a code is sign, exponent, mantissa; the value is
// mantissa x 2^exponent. kIeee: the highest exponent is for infinity and NaN.
template <typename Code, int kExponentBits, int kMantissaBits, bool kIeee>
struct SmallFormat {
  using Number = float;
  static constexpr size_t kBytes = sizeof(Code);
  static constexpr int kBias = (1 << (kExponentBits - 1)) - 1;
  static constexpr int kMinExponent = 1 - kBias;
  static constexpr int kMagnitudeBits = kExponentBits + kMantissaBits;
  static constexpr int kMantissaMask = (1 << kMantissaBits) - 1;
  static constexpr int kInfinity = ((1 << kExponentBits) - 1) << kMantissaBits;
  static constexpr int kNan = (1 << kMagnitudeBits) - 1;
  // What is too large: infinity, or the largest number where there is no infinity.
  static constexpr int kOverflow = kIeee ? kInfinity : kNan - 1;

  static float get(const uint8_t* from) {
    const int code = PlainFormat<Code>::get(from);
    const int magnitude = code & ((1 << kMagnitudeBits) - 1);
    const float sign = (code >> kMagnitudeBits) != 0 ? -1.0f : 1.0f;
    if (kIeee && magnitude == kInfinity) return sign * std::numeric_limits<float>::infinity();
    if (magnitude > kOverflow) return std::numeric_limits<float>::quiet_NaN();
    return sign * magnitude_of(magnitude);
  }

  static float magnitude_of(int code) {
    const int exponent_code = code >> kMantissaBits;
    const int mantissa = code & kMantissaMask;
    if (exponent_code == 0) return std::ldexp(float(mantissa), kMinExponent - kMantissaBits);
    return std::ldexp(float(mantissa + (1 << kMantissaBits)),
                      exponent_code - kBias - kMantissaBits);
  }

  static void put(uint8_t* to, float value) {
    int code = 0;
    if (std::isnan(value)) {
      code = kNan;
    } else if (value != 0) {
      code = magnitude_code(std::fabs(double(value)));
    }
    if (std::signbit(value)) code |= 1 << kMagnitudeBits;
    PlainFormat<Code>::put(to, static_cast<Code>(code));
  }

  // Rounds to a multiple of the step that the format has at this exponent, in double, where this is
  // exact but for the rounding itself (to nearest even, the default mode).
  static int magnitude_code(double value) {
    if (std::isinf(value)) return kOverflow;
    const int exponent = std::max(std::ilogb(value), kMinExponent);
    const double steps = std::nearbyint(std::ldexp(value, kMantissaBits - exponent));
    // `steps` counts from 0 in steps of this exponent; codes count on from one exponent to the
    // next.
    const int code = int(steps) + ((exponent - kMinExponent) << kMantissaBits);
    return std::min(code, kOverflow);
  }
};

template <typename T>
T add(T a, T b) {
  if constexpr (std::is_integral_v<T>) {
    return static_cast<T>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b));
  } else {
    return a + b;
  }
}

template <typename T>
T multiply(T a, T b) {
  if constexpr (std::is_integral_v<T>) {
    return static_cast<T>(static_cast<uint64_t>(a) * static_cast<uint64_t>(b));
  } else {
    return a * b;
  }
}

template <typename T>
bool is_nan(T value) {
  if constexpr (std::is_floating_point_v<T>) return std::isnan(value);
  return false;
}

template <typename T>
T bitwise(ReduceOp op, T a, T b) {
  if constexpr (std::is_integral_v<T>) {
    if (op == ReduceOp::band) return static_cast<T>(a & b);
    if (op == ReduceOp::bor) return static_cast<T>(a | b);
    return static_cast<T>(a ^ b);
  }
  return a;
}

template <typename T>
T apply(ReduceOp op, T a, T b) {
  switch (op) {
    case ReduceOp::sum:
    case ReduceOp::avg: return add(a, b);
    case ReduceOp::product: return multiply(a, b);
    case ReduceOp::min:
      if (is_nan(a) || is_nan(b)) return is_nan(a) ? a : b;
      return b < a ? b : a;
    case ReduceOp::max:
      if (is_nan(a) || is_nan(b)) return is_nan(a) ? a : b;
      return a < b ? b : a;
    default: return bitwise(op, a, b);
  }
}

bool apply(ReduceOp op, bool a, bool b) {
  switch (op) {
    case ReduceOp::sum:
    case ReduceOp::max:
    case ReduceOp::bor: return a || b;
    case ReduceOp::bxor: return a != b;
    default: return a && b;
  }
}

template <typename T>
ComplexValue<T> apply(ReduceOp op, ComplexValue<T> a, ComplexValue<T> b) {
  if (op != ReduceOp::product) return {a.real + b.real, a.imaginary + b.imaginary};
  return {a.real * b.real - a.imaginary * b.imaginary, a.real * b.imaginary + a.imaginary * b.real};
}

template <typename T>
T divide(T value, uint64_t divisor) {
  if constexpr (std::is_floating_point_v<T>) {
    return value / static_cast<T>(divisor);
  } else if constexpr (std::is_signed_v<T>) {
    return static_cast<T>(int64_t{value} / static_cast<int64_t>(divisor));
  } else {
    return static_cast<T>(uint64_t{value} / divisor);
  }
}

template <typename T>
ComplexValue<T> divide(ComplexValue<T> value, uint64_t divisor) {
  return {divide(value.real, divisor), divide(value.imaginary, divisor)};
}

template <typename T>
T scaled(T value, double factor) {
  if constexpr (std::is_floating_point_v<T>) return value * static_cast<T>(factor);
  return value;
}

template <typename T>
ComplexValue<T> scaled(ComplexValue<T> value, double factor) {
  return {scaled(value.real, factor), scaled(value.imaginary, factor)};
}

// Calls `visitor` with the format of the type.
template <typename Visitor>
auto with_format(DType dtype, Visitor visitor) {
  switch (dtype) {
    case DType::u8: return visitor(PlainFormat<uint8_t>());
    case DType::i8: return visitor(PlainFormat<int8_t>());
    case DType::u16: return visitor(PlainFormat<uint16_t>());
    case DType::i16: return visitor(PlainFormat<int16_t>());
    case DType::u32: return visitor(PlainFormat<uint32_t>());
    case DType::i32: return visitor(PlainFormat<int32_t>());
    case DType::u64: return visitor(PlainFormat<uint64_t>());
    case DType::i64: return visitor(PlainFormat<int64_t>());
    case DType::f16: return visitor(SmallFormat<uint16_t, 5, 10, true>());
    case DType::bf16: return visitor(SmallFormat<uint16_t, 8, 7, true>());
    case DType::f64: return visitor(PlainFormat<double>());
    case DType::c64: return visitor(PlainFormat<ComplexValue<float>>());
    case DType::c128: return visitor(PlainFormat<ComplexValue<double>>());
    case DType::boolean: return visitor(BoolFormat());
    case DType::f8e4m3: return visitor(SmallFormat<uint8_t, 4, 3, false>());
    case DType::f8e5m2: return visitor(SmallFormat<uint8_t, 5, 2, true>());
    case DType::f32: break;
  }
  return visitor(PlainFormat<float>());
}

template <typename T>
double real_part(T value) {
  return static_cast<double>(value);
}

template <typename T>
double real_part(ComplexValue<T> value) {
  return value.real;
}

template <typename Number>
Number number_from(double value) {
  if constexpr (std::is_arithmetic_v<Number>) {
    return static_cast<Number>(value);
  } else {
    using Part = decltype(Number::real);
    return {static_cast<Part>(value), static_cast<Part>(value / 2)};
  }
}

template <typename T>
bool same(T a, T b) {
  return a == b || (is_nan(a) && is_nan(b));
}

template <typename T>
bool same(ComplexValue<T> a, ComplexValue<T> b) {
  return same(a.real, b.real) && same(a.imaginary, b.imaginary);
}

}  // namespace

Bytes reference_reduce(const std::vector<Bytes>& srcs, size_t count, DType dtype, ReduceOp op,
                       uint64_t divisor) {
  Bytes result(count * size_of(dtype));
  with_format(dtype, [&](auto format) {
    using Format = decltype(format);
    for (size_t at = 0; at < result.size(); at += Format::kBytes) {
      auto value = Format::get(&srcs[0][at]);
      for (size_t k = 1; k < srcs.size(); ++k) value = apply(op, value, Format::get(&srcs[k][at]));
      if (op == ReduceOp::avg) value = divide(value, divisor);
      Format::put(&result[at], value);
    }
  });
  return result;
}

Bytes reference_scale(const Bytes& src, size_t count, DType dtype, double factor) {
  Bytes result(count * size_of(dtype));
  with_format(dtype, [&](auto format) {
    using Format = decltype(format);
    for (size_t at = 0; at < result.size(); at += Format::kBytes) {
      Format::put(&result[at], scaled(Format::get(&src[at]), factor));
    }
  });
  return result;
}

Bytes encode(DType dtype, const std::vector<double>& numbers) {
  Bytes result(numbers.size() * size_of(dtype));
  with_format(dtype, [&](auto format) {
    using Format = decltype(format);
    for (size_t i = 0; i < numbers.size(); ++i) {
      Format::put(&result[i * Format::kBytes], number_from<typename Format::Number>(numbers[i]));
    }
  });
  return result;
}

double decode(DType dtype, const Bytes& elements, size_t index) {
  return with_format(dtype, [&](auto format) {
    using Format = decltype(format);
    return real_part(Format::get(&elements[index * Format::kBytes]));
  });
}

bool equal_elements(DType dtype, const uint8_t* a, const uint8_t* b) {
  if (dtype == DType::boolean) return *a == *b;  // get() hides a byte that is neither 0 nor 1
  return with_format(dtype, [&](auto format) {
    using Format = decltype(format);
    return same(Format::get(a), Format::get(b));
  });
}

}  // namespace dmlcomm::test
