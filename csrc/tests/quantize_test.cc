// Quantization of every instruction set that this CPU runs, bit by bit against a reference that
// computes one number at a time. Buffers are misaligned, and as long as they must be.
#include "kernels/quantize.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "kernels/dispatch.h"
#include "tests/kernels_reference.h"

namespace dmlcomm::test {
namespace {

using kernels::KernelTable;
using kernels::kQuantizedBlock;
using kernels::kQuantizedBlockBytes;
using kernels::quantized_bytes;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// Products are rounded from double, in which they are exact: no compiler fuses them with a sum.
float product(float a, float b) { return static_cast<float>(double{a} * double{b}); }

struct Reference {
  DType codes;

  float largest() const { return codes == DType::i8 ? 127 : 448; }

  // The code of a number that was multiplied with the inverse of the scale, and what it stands for.
  uint8_t code_of(float number) const {
    if (codes == DType::f8e4m3) return encode(codes, {number})[0];
    return static_cast<uint8_t>(static_cast<int8_t>(std::nearbyint(number)));
  }
  float number_of(uint8_t code) const {
    if (codes == DType::f8e4m3) return static_cast<float>(decode(codes, {code}, 0));
    return static_cast<int8_t>(code);
  }

  std::vector<float> numbers(const Bytes& quantized, size_t count) const {
    std::vector<float> result(count);
    for (size_t i = 0; i < count; ++i) {
      const uint8_t* const block = &quantized[i / kQuantizedBlock * kQuantizedBlockBytes];
      float scale;
      std::memcpy(&scale, block, sizeof(scale));
      result[i] = product(number_of(block[sizeof(scale) + i % kQuantizedBlock]), scale);
    }
    return result;
  }

  // `block` becomes the numbers, and these become what is left of them.
  void quantize_block(uint8_t* block, float* numbers, size_t count) const {
    float most = 0;
    bool is_finite = true;
    for (size_t i = 0; i < count; ++i) {
      is_finite = is_finite && std::fabs(numbers[i]) < std::ldexp(1.0f, 127);
      most = std::max(most, std::fabs(numbers[i]));
    }
    float scale = is_finite ? most / largest() : kNan;
    float inverse = largest() / most;
    if (is_finite && most < std::ldexp(1.0f, -100)) scale = inverse = 0;
    std::memcpy(block, &scale, sizeof(scale));
    for (size_t i = 0; i < count; ++i) {
      const uint8_t code = is_finite ? code_of(product(numbers[i], inverse)) : 0;
      block[sizeof(scale) + i] = code;
      numbers[i] = is_finite ? numbers[i] - product(number_of(code), scale) : 0;
    }
  }

  // As kernels::quantize, and the numbers of `error` become the new ones; empty: none.
  Bytes quantize(std::vector<float>& error, const std::vector<float>& values, float factor,
                 const std::vector<Bytes>& sources) const {
    std::vector<float> sums(values.size());
    for (size_t i = 0; i < sums.size(); ++i) {
      sums[i] = product(values[i], factor);
      if (!error.empty()) sums[i] += error[i];
    }
    for (const Bytes& source : sources) {
      const std::vector<float> added = numbers(source, sums.size());
      for (size_t i = 0; i < sums.size(); ++i) sums[i] += added[i];
    }
    Bytes result(quantized_bytes(sums.size()));
    for (size_t at = 0; at < sums.size(); at += kQuantizedBlock) {
      quantize_block(&result[at / kQuantizedBlock * kQuantizedBlockBytes], &sums[at],
                     std::min(kQuantizedBlock, sums.size() - at));
    }
    if (!error.empty()) error = sums;
    return result;
  }
};

// Floats that begin one byte after an aligned address and end where their memory ends.
class Floats {
 public:
  explicit Floats(const std::vector<float>& numbers) : memory_(1 + numbers.size() * sizeof(float)) {
    if (!numbers.empty()) std::memcpy(data(), numbers.data(), memory_.size() - 1);
  }
  uint8_t* data() { return memory_.data() + 1; }
  std::vector<float> numbers() {
    std::vector<float> result((memory_.size() - 1) / sizeof(float));
    if (!result.empty()) std::memcpy(result.data(), data(), memory_.size() - 1);
    return result;
  }

 private:
  Bytes memory_;
};

// Equal bits, so that -0 is not 0; a NaN is equal to a NaN.
bool are_equal(const std::vector<float>& a, const std::vector<float>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](float x, float y) {
    return std::isnan(x) ? std::isnan(y) : std::memcmp(&x, &y, sizeof(x)) == 0;
  });
}

class Quantize : public testing::TestWithParam<std::tuple<const KernelTable*, DType>> {
 protected:
  const KernelTable& table() const { return *std::get<0>(GetParam()); }
  DType codes() const { return std::get<1>(GetParam()); }
  Reference reference() const { return {codes()}; }

  // Blocks differ by powers of 4; now and then one is all small, or has a special number.
  std::vector<float> random_numbers(size_t count, bool with_special = false) {
    std::normal_distribution<float> normal;
    std::vector<float> numbers(count);
    for (size_t at = 0; at < count; at += kQuantizedBlock) {
      const float size = std::ldexp(1.0f, 2 * static_cast<int>(random_() % 20) - 30);
      const size_t end = std::min(count, at + kQuantizedBlock);
      for (size_t i = at; i < end; ++i) numbers[i] = size * normal(random_);
      const float special[] = {kInfinity, -kInfinity, kNan, 3e38f, 1e-40f, -0.0f};
      if (with_special && random_() % 2 == 0) {
        numbers[at + random_() % (end - at)] = special[random_() % std::size(special)];
      }
    }
    return numbers;
  }

  Bytes quantize(std::vector<float>& error, const std::vector<float>& values, float factor,
                 const std::vector<Bytes>& sources) const {
    Floats in(values);
    Floats left(error);
    std::vector<const void*> pointers;
    for (const Bytes& source : sources) pointers.push_back(source.data());
    const kernels::QuantizeInput input{in.data(), factor, pointers.data(), pointers.size()};
    Bytes result(quantized_bytes(values.size()));
    kernels::get(table().quantize, codes())(result.data(), error.empty() ? nullptr : left.data(),
                                            input, values.size());
    error = left.numbers();
    return result;
  }

  std::vector<float> dequantize(const Bytes& quantized, size_t count) const {
    Floats result(std::vector<float>(count, -1));
    kernels::get(table().dequantize, codes())(result.data(), quantized.data(), count);
    return result.numbers();
  }

  void expect_as_reference(size_t count, size_t num_sources, bool has_error, bool with_special) {
    std::vector<Bytes> sources;
    std::vector<float> none;
    for (size_t k = 0; k < num_sources; ++k) {
      sources.push_back(reference().quantize(none, random_numbers(count), 1, {}));
    }
    const std::vector<float> values = random_numbers(count, with_special);
    std::vector<float> error = has_error ? random_numbers(count) : none;
    std::vector<float> expected_error = error;
    const Bytes expected = reference().quantize(expected_error, values, 1.0f / 3, sources);
    const Bytes got = quantize(error, values, 1.0f / 3, sources);
    EXPECT_TRUE(are_equal(error, expected_error));
    EXPECT_TRUE(are_equal(dequantize(got, count), reference().numbers(expected, count)));
    if (!with_special) {
      EXPECT_EQ(got, expected);
    }
  }

  std::mt19937 random_{20240229};
};

TEST_P(Quantize, MatchesReferenceForEveryLengthAndNumberOfSources) {
  for (const size_t count : {0, 1, 3, 16, 255, 256, 257, 511, 512, 513, 1000}) {
    for (const size_t num_sources : {0, 1, 2, 5}) {
      for (const bool has_error : {false, true}) {
        expect_as_reference(count, num_sources, has_error, false);
        ASSERT_FALSE(HasFailure()) << count << " " << num_sources << " " << has_error;
      }
    }
  }
}

TEST_P(Quantize, SpecialNumbersAreAsDefined) {
  for (size_t round = 0; round < 200; ++round) {
    expect_as_reference(1000, round % 3, true, true);
    ASSERT_FALSE(HasFailure()) << round;
  }
}

TEST_P(Quantize, BlockWithOneNanOrInfinityIsNanAndItsNeighboursAreNot) {
  for (const float special : {kNan, kInfinity, -kInfinity, 2e38f}) {
    std::vector<float> values(3 * kQuantizedBlock, 1);
    values[kQuantizedBlock + 7] = special;
    std::vector<float> error(values.size(), 0.25f);
    const std::vector<float> numbers = dequantize(quantize(error, values, 1, {}), values.size());
    for (size_t i = 0; i < values.size(); ++i) {
      const bool is_hit = i / kQuantizedBlock == 1;
      ASSERT_EQ(std::isnan(numbers[i]), is_hit) << special << " at " << i;
      ASSERT_TRUE(std::isfinite(error[i])) << special << " at " << i;
    }
  }
}

TEST_P(Quantize, NanOfASourceReachesTheSum) {
  std::vector<float> none;
  const std::vector<float> values(kQuantizedBlock, 1);
  std::vector<float> with_nan = values;
  with_nan[0] = kNan;
  const Bytes source = quantize(none, with_nan, 1, {});
  const std::vector<float> sum = dequantize(quantize(none, values, 1, {source}), values.size());
  EXPECT_TRUE(std::all_of(sum.begin(), sum.end(), [](float x) { return std::isnan(x); }));
}

// What is left of a block is at most half of a step of its codes: 1/254 of the largest number, or
// 1/28 (32 of 448) where the codes are floats.
TEST_P(Quantize, ErrorIsHalfAStepAtMostAndNothingIsLost) {
  const std::vector<float> values = random_numbers(kQuantizedBlock);
  std::vector<float> error(values.size());
  const std::vector<float> numbers = dequantize(quantize(error, values, 1, {}), values.size());
  float most = 0;
  for (const float value : values) most = std::max(most, std::fabs(value));
  const float bound = 1.0001f * most / (codes() == DType::i8 ? 254 : 28);
  for (size_t i = 0; i < values.size(); ++i) {
    EXPECT_LE(std::fabs(error[i]), bound);
    EXPECT_EQ(error[i], values[i] - numbers[i]);
  }
}

// Numbers that are 1/1000 of their block's largest disappear alone, and arrive by the error.
TEST_P(Quantize, SmallNumbersArriveInTheEnd) {
  std::vector<float> values(kQuantizedBlock, 1e-3f);
  values[0] = 1;
  std::vector<float> error(values.size());
  double sum = 0;
  for (size_t round = 0; round < 1000; ++round) {
    sum += dequantize(quantize(error, values, 1, {}), values.size())[1];
  }
  EXPECT_NEAR(sum, 1, 0.01);
}

std::string case_name(const testing::TestParamInfo<Quantize::ParamType>& info) {
  const auto& [table, codes] = info.param;
  return std::string(table->isa) + "_" + to_string(codes);
}

INSTANTIATE_TEST_SUITE_P(Isa, Quantize,
                         testing::Combine(testing::ValuesIn(kernels::runnable_tables()),
                                          testing::Values(DType::i8, DType::f8e4m3)),
                         case_name);

TEST(QuantizeSupport, IsOfTwoCodesInEveryInstructionSet) {
  for (const KernelTable* const table : kernels::runnable_tables()) {
    for (size_t row = 0; row <= kNumDTypes; ++row) {
      const auto codes = static_cast<DType>(row);
      const bool expected = codes == DType::i8 || codes == DType::f8e4m3;
      EXPECT_EQ(kernels::find(table->quantize, codes) != nullptr, expected);
      EXPECT_EQ(kernels::find(table->dequantize, codes) != nullptr, expected);
      EXPECT_EQ(kernels::supports_quantize(codes), expected);
    }
  }
}

TEST(QuantizeSupport, BytesAreThoseOfWholeBlocks) {
  EXPECT_EQ(quantized_bytes(0), 0u);
  EXPECT_EQ(quantized_bytes(1), 260u);
  EXPECT_EQ(quantized_bytes(256), 260u);
  EXPECT_EQ(quantized_bytes(257), 520u);
}

}  // namespace
}  // namespace dmlcomm::test
