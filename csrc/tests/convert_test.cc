// Conversions on every instruction set that this CPU runs, against kernels_reference.h: every code
// of the 16-bit formats, every place where rounding changes its mind, and a walk through all of
// f32.
#include "kernels/convert.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <tuple>
#include <vector>

#include "kernels/dispatch.h"
#include "tests/kernels_reference.h"

namespace dmlcomm::test {
namespace {

using kernels::ConvertFunction;
using kernels::KernelTable;

constexpr size_t kCodes = size_t{1} << 16;
constexpr uint32_t kF32Nan = 0x7fc00000;

uint16_t nan_code(DType dtype) { return dtype == DType::f16 ? 0x7e00 : 0x7fc0; }

class Conversions : public testing::TestWithParam<std::tuple<const KernelTable*, DType>> {
 protected:
  const KernelTable& table() const { return *std::get<0>(GetParam()); }
  DType dtype() const { return std::get<1>(GetParam()); }

  std::vector<uint32_t> widened(const std::vector<uint16_t>& codes) const {
    std::vector<uint32_t> bits(codes.size());
    table().to_f32[static_cast<size_t>(dtype())](bits.data(), codes.data(), codes.size());
    return bits;
  }

  std::vector<uint16_t> narrowed(const std::vector<uint32_t>& bits) const {
    std::vector<uint16_t> codes(bits.size());
    table().from_f32[static_cast<size_t>(dtype())](codes.data(), bits.data(), bits.size());
    return codes;
  }

  // What a code means, by the definition of the format.
  uint32_t expected_wide(uint16_t code) const {
    Bytes element(2);
    std::memcpy(element.data(), &code, 2);
    const double value = decode(dtype(), element, 0);
    return std::isnan(value) ? kF32Nan : std::bit_cast<uint32_t>(static_cast<float>(value));
  }

  uint16_t expected_narrow(uint32_t bits) const {
    const auto value = std::bit_cast<float>(bits);
    if (std::isnan(value)) return nan_code(dtype());
    uint16_t code = 0;
    std::memcpy(&code, encode(dtype(), {value}).data(), 2);
    return code;
  }

  void expect_narrowed(const std::vector<uint32_t>& bits) const {
    const std::vector<uint16_t> codes = narrowed(bits);
    for (size_t i = 0; i < bits.size(); ++i) {
      ASSERT_EQ(codes[i], expected_narrow(bits[i])) << std::hex << bits[i];
    }
  }
};

std::vector<uint16_t> all_codes() {
  std::vector<uint16_t> codes(kCodes);
  for (size_t code = 0; code < kCodes; ++code) codes[code] = static_cast<uint16_t>(code);
  return codes;
}

TEST_P(Conversions, WidenEveryCode) {
  const std::vector<uint32_t> bits = widened(all_codes());
  for (size_t code = 0; code < kCodes; ++code) {
    ASSERT_EQ(bits[code], expected_wide(static_cast<uint16_t>(code))) << std::hex << code;
  }
}

TEST_P(Conversions, NarrowWhatWasWidened) {
  const std::vector<uint32_t> bits = widened(all_codes());
  const std::vector<uint16_t> codes = narrowed(bits);
  for (size_t code = 0; code < kCodes; ++code) {
    ASSERT_EQ(codes[code], bits[code] == kF32Nan ? nan_code(dtype()) : code) << std::hex << code;
  }
}

// Between every code and the next one: the middle, which goes to the even code, and the numbers of
// f32 beside it and beside both. Where the next code is infinity, the middle lies half a step above
// the largest number.
TEST_P(Conversions, RoundToNearestEvenBetweenAllCodes) {
  const uint32_t step = dtype() == DType::f16 ? 1u << 13 : 1u << 16;
  std::vector<uint32_t> bits;
  for (size_t code = 0; code < kCodes; ++code) {
    const uint32_t lower = expected_wide(static_cast<uint16_t>(code));
    const uint32_t upper = expected_wide(static_cast<uint16_t>(code + 1));
    const auto low = double{std::bit_cast<float>(lower)};
    const auto high = double{std::bit_cast<float>(upper)};
    if (std::isnan(low) || std::isinf(low) || std::isnan(high)) continue;
    const double middle = (low + high) / 2;
    const uint32_t tie =
        std::isinf(middle) ? lower + step / 2 : std::bit_cast<uint32_t>(static_cast<float>(middle));
    for (const uint32_t number : {lower + 1, tie - 1, tie, tie + 1, upper - 1}) {
      bits.push_back(number);
    }
  }
  ASSERT_GT(bits.size(), 5 * (kCodes - 4096));
  expect_narrowed(bits);
}

// An odd step visits every exponent and mantissa alike, NaNs with every payload among them.
TEST_P(Conversions, NarrowAllOfF32InSteps) {
  std::vector<uint32_t> bits;
  for (uint64_t number = 0; number < (uint64_t{1} << 32); number += 4093) {
    bits.push_back(static_cast<uint32_t>(number));
  }
  expect_narrowed(bits);
}

TEST_P(Conversions, NarrowSpecialValues) {
  const std::vector<uint32_t> bits = {0,          0x80000000,  // zeros
                                      1,          0x807fffff,  // subnormal numbers of f32
                                      0x7f7fffff, 0xff7fffff,  // the largest
                                      0x7f800000, 0xff800000,  // infinity
                                      0x7fc00000, 0xffc00000,  // quiet NaNs
                                      0x7f800001, 0xff800001,
                                      0x7fffffff};  // signalling ones; the largest payload
  expect_narrowed(bits);
}

// Around the vector widths, misaligned, and not an element further than asked.
TEST_P(Conversions, TakeEveryLengthAndAlignment) {
  constexpr uint8_t kUntouched = 0xa5;
  for (size_t count = 0; count <= 130; ++count) {
    std::vector<uint16_t> codes(count);
    Bytes wide(4 * count + 1);
    Bytes narrow(2 * count + 1);
    for (size_t i = 0; i < count; ++i) {
      codes[i] = static_cast<uint16_t>(i * 509 % 0x7c00);
      const uint32_t bits = expected_wide(codes[i]);
      std::memcpy(&wide[1 + 4 * i], &bits, 4);
    }
    if (count != 0) std::memcpy(&narrow[1], codes.data(), 2 * count);
    Bytes to_narrow(2 * count + 2, kUntouched);
    Bytes to_wide(4 * count + 2, kUntouched);
    const auto row = static_cast<size_t>(dtype());
    table().from_f32[row](to_narrow.data() + 1, wide.data() + 1, count);
    table().to_f32[row](to_wide.data() + 1, narrow.data() + 1, count);
    for (const auto& [got, expected] : {std::pair{&to_narrow, &narrow}, {&to_wide, &wide}}) {
      EXPECT_EQ(got->front(), kUntouched) << count;
      EXPECT_EQ(got->back(), kUntouched) << count;
      ASSERT_EQ(Bytes(got->begin() + 1, got->end() - 1),
                Bytes(expected->begin() + 1, expected->end()))
          << count;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Isa, Conversions,
                         testing::Combine(testing::ValuesIn(kernels::runnable_tables()),
                                          testing::Values(DType::f16, DType::bf16)),
                         [](const auto& info) {
                           return std::string(std::get<0>(info.param)->isa) + "_" +
                                  to_string(std::get<1>(info.param));
                         });

// --- the public functions

TEST(Convert, IsDefinedWhereTheHeaderSaysSo) {
  for (size_t to = 0; to < kNumDTypes; ++to) {
    for (size_t from = 0; from < kNumDTypes; ++from) {
      const auto to_dtype = static_cast<DType>(to);
      const auto from_dtype = static_cast<DType>(from);
      const auto is_half = [](DType dtype) { return dtype == DType::f16 || dtype == DType::bf16; };
      const bool expected = to == from || (to_dtype == DType::f32 && is_half(from_dtype)) ||
                            (from_dtype == DType::f32 && is_half(to_dtype));
      EXPECT_EQ(kernels::supports_convert(to_dtype, from_dtype), expected)
          << to_string(to_dtype) << " from " << to_string(from_dtype);
    }
  }
  const auto nothing = static_cast<DType>(kNumDTypes);
  EXPECT_FALSE(kernels::supports_convert(nothing, nothing));
  EXPECT_FALSE(kernels::supports_convert(DType::f32, nothing));
  EXPECT_FALSE(kernels::supports_convert(nothing, DType::f32));
}

TEST(Convert, GoesBothWays) {
  const std::vector<float> numbers = {1.0f, -2.5f, 65504.0f};
  for (const DType dtype : {DType::f16, DType::bf16}) {
    Bytes narrow(2 * numbers.size());
    kernels::convert(narrow.data(), dtype, numbers.data(), DType::f32, numbers.size());
    EXPECT_EQ(narrow, encode(dtype, {1.0, -2.5, 65504.0}));
    std::vector<float> wide(numbers.size());
    kernels::convert(wide.data(), DType::f32, narrow.data(), dtype, numbers.size());
    EXPECT_EQ(wide[1], -2.5f);
  }
}

TEST(Convert, CopiesATypeToItselfBitByBit) {
  const std::vector<uint16_t> codes = {0x7d01, 0xfe00, 3};  // a signalling NaN stays one
  std::vector<uint16_t> copy(codes.size());
  kernels::convert(copy.data(), DType::f16, codes.data(), DType::f16, codes.size());
  EXPECT_EQ(copy, codes);
}

TEST(ConvertDeathTest, WhatIsNotDefinedAborts) {
  uint64_t memory = 0;
  EXPECT_DEATH(kernels::convert(&memory, DType::f64, &memory, DType::f32, 1), "supports_convert");
}

}  // namespace
}  // namespace dmlcomm::test
