// The reduction kernels of every instruction set that this CPU runs, against kernels_reference.h.
// Lengths lie around the vector widths (up to 64 lanes and four vectors), buffers are misaligned,
// and each is exactly as long as it must be, so that AddressSanitizer sees an element too many.
#include "kernels/reduce.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "kernels/copy.h"
#include "kernels/dispatch.h"
#include "tests/kernels_reference.h"

namespace dmlcomm::test {
namespace {

using kernels::KernelTable;
using kernels::ReduceFunction;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

const std::vector<size_t> kLengths = {0,  1,  2,  3,  7,  8,   15,  16,  17,  31,
                                      32, 33, 63, 64, 65, 127, 128, 129, 1000};

std::vector<DType> all_dtypes() {
  std::vector<DType> dtypes;
  for (size_t i = 0; i < kNumDTypes; ++i) dtypes.push_back(static_cast<DType>(i));
  return dtypes;
}

std::vector<ReduceOp> all_ops() {
  std::vector<ReduceOp> ops;
  for (size_t i = 0; i < kNumReduceOps; ++i) ops.push_back(static_cast<ReduceOp>(i));
  return ops;
}

bool is_complex(DType dtype) { return dtype == DType::c64 || dtype == DType::c128; }

bool is_real_float(DType dtype) {
  switch (dtype) {
    case DType::f16:
    case DType::bf16:
    case DType::f32:
    case DType::f64:
    case DType::f8e4m3:
    case DType::f8e5m2: return true;
    default: return false;
  }
}

bool is_float(DType dtype) { return is_real_float(dtype) || is_complex(dtype); }

// Any bits for integers, bool and the formats of 8 and 16 bits. For f32, f64 and complex numbers
// small multiples of 1/4, so that products of a few are exact whatever way a compiler rounds them,
// and for f32 and f64 now and then a special value.
Bytes random_elements(DType dtype, size_t count, std::mt19937& random) {
  const bool wide = dtype == DType::f32 || dtype == DType::f64;
  Bytes elements(count * size_of(dtype));
  if (!wide && !is_complex(dtype)) {
    std::generate(elements.begin(), elements.end(), [&] { return static_cast<uint8_t>(random()); });
    return elements;
  }
  const double special[] = {0.0, -0.0, kInfinity, -kInfinity, kNan, 1e-40, 3e38};
  std::vector<double> numbers(count);
  for (double& number : numbers) {
    number = (static_cast<int>(random() % 33) - 16) / 4.0;
    if (wide && random() % 16 == 0) number = special[random() % std::size(special)];
  }
  return encode(dtype, numbers);
}

// A buffer that starts `offset` bytes after an aligned address and ends where its memory ends.
class Buffer {
 public:
  Buffer(const Bytes& content, size_t offset) : memory_(offset + content.size()), offset_(offset) {
    std::copy(content.begin(), content.end(), memory_.begin() + static_cast<ptrdiff_t>(offset));
  }
  uint8_t* data() { return memory_.data() + offset_; }

 private:
  Bytes memory_;
  size_t offset_;
};

testing::AssertionResult matches(DType dtype, const uint8_t* got, const Bytes& expected) {
  const size_t step = size_of(dtype);
  for (size_t at = 0; at < expected.size(); at += step) {
    if (equal_elements(dtype, got + at, &expected[at])) continue;
    const Bytes element(got + at, got + at + step);
    return testing::AssertionFailure()
           << "element " << at / step << " is " << decode(dtype, element, 0) << ", expected "
           << decode(dtype, expected, at / step);
  }
  return testing::AssertionSuccess();
}

struct Call {
  DType dtype;
  ReduceOp op;
  size_t count;
  size_t num_srcs;
  uint64_t divisor;
  size_t misalignment = 0;
  // The source that is the destination too; num_srcs: none.
  size_t aliased = SIZE_MAX;
};

std::ostream& operator<<(std::ostream& out, const Call& call) {
  return out << to_string(call.dtype) << ' ' << to_string(call.op) << " count " << call.count
             << " sources " << call.num_srcs << " divisor " << call.divisor << " misalignment "
             << call.misalignment << " aliased source " << static_cast<ptrdiff_t>(call.aliased);
}

testing::AssertionResult call_matches(const KernelTable& table, const Call& call,
                                      std::mt19937& random) {
  std::vector<Bytes> inputs;
  std::vector<Buffer> buffers;
  for (size_t k = 0; k < call.num_srcs; ++k) {
    inputs.push_back(random_elements(call.dtype, call.count, random));
    buffers.emplace_back(inputs.back(), call.misalignment * (k + 1));
  }
  Buffer separate(Bytes(call.count * size_of(call.dtype)), call.misalignment);
  uint8_t* dst = call.aliased < call.num_srcs ? buffers[call.aliased].data() : separate.data();
  std::vector<const void*> srcs;
  for (Buffer& buffer : buffers) srcs.push_back(buffer.data());

  const Bytes expected = reference_reduce(inputs, call.count, call.dtype, call.op, call.divisor);
  const auto row = static_cast<size_t>(call.dtype);
  const ReduceFunction function = table.reduce[row][static_cast<size_t>(call.op)];
  function(dst, srcs.data(), call.num_srcs, call.count, call.divisor);
  return matches(call.dtype, dst, expected);
}

class Kernels : public testing::TestWithParam<std::tuple<const KernelTable*, DType>> {
 protected:
  const KernelTable& table() const { return *std::get<0>(GetParam()); }
  DType dtype() const { return std::get<1>(GetParam()); }

  bool has(ReduceOp op) const {
    return table().reduce[static_cast<size_t>(dtype())][static_cast<size_t>(op)] != nullptr;
  }

  Bytes reduce(ReduceOp op, const std::vector<Bytes>& inputs, uint64_t divisor = 1) const {
    std::vector<const void*> srcs;
    for (const Bytes& input : inputs) srcs.push_back(input.data());
    Bytes result(inputs[0].size());
    const auto row = static_cast<size_t>(dtype());
    table().reduce[row][static_cast<size_t>(op)](result.data(), srcs.data(), srcs.size(),
                                                 result.size() / size_of(dtype()), divisor);
    return result;
  }

  std::mt19937 random_{20240229};
};

class FloatKernels : public Kernels {};       // real floating-point types
class SmallFloatKernels : public Kernels {};  // those of 8 and 16 bits

TEST_P(Kernels, MatchReferenceForEveryOperatorLengthAndNumberOfSources) {
  for (const ReduceOp op : all_ops()) {
    if (!has(op)) continue;
    for (const size_t count : kLengths) {
      for (const size_t num_srcs : {1, 2, 3, 4, 5, 9}) {
        for (const size_t misalignment : {0, 1}) {
          const Call call{dtype(), op, count, num_srcs, num_srcs, misalignment};
          ASSERT_TRUE(call_matches(table(), call, random_)) << call;
        }
      }
    }
  }
}

TEST_P(Kernels, TakeAnySourceAsDestination) {
  for (const ReduceOp op : all_ops()) {
    if (!has(op)) continue;
    for (const size_t count : {1, 17, 129, 1000}) {
      for (const size_t num_srcs : {1, 2, 3, 4, 5, 9}) {
        for (size_t aliased = 0; aliased < num_srcs; ++aliased) {
          const Call call{dtype(), op, count, num_srcs, num_srcs, 0, aliased};
          ASSERT_TRUE(call_matches(table(), call, random_)) << call;
        }
      }
    }
  }
}

TEST_P(Kernels, AverageDividesByAnyDivisor) {
  if (!has(ReduceOp::avg)) return;
  for (const uint64_t divisor : {1, 2, 3, 4, 7, 128, 300, 65537}) {
    for (const size_t num_srcs : {1, 2, 5}) {
      const Call call{dtype(), ReduceOp::avg, 1000, num_srcs, divisor};
      ASSERT_TRUE(call_matches(table(), call, random_)) << call;
    }
  }
}

TEST_P(FloatKernels, MinAndMaxGiveNanFromEveryPosition) {
  const size_t count = 129;
  const size_t num_srcs = 5;
  for (const ReduceOp op : {ReduceOp::min, ReduceOp::max}) {
    for (size_t position = 0; position < num_srcs; ++position) {
      std::vector<Bytes> inputs(num_srcs, encode(dtype(), std::vector<double>(count, 1.5)));
      inputs[position] = encode(dtype(), std::vector<double>(count, kNan));
      const Bytes result = reduce(op, inputs);
      for (size_t i = 0; i < count; ++i) {
        ASSERT_TRUE(std::isnan(decode(dtype(), result, i))) << to_string(op) << " " << position;
      }
    }
  }
}

// Every code of the formats of 8 and 16 bits, against permutations of all codes: what is read, what
// is rounded (a product of three has more digits than the format), and every special value.
TEST_P(SmallFloatKernels, ReadAndRoundAsDefined) {
  const size_t codes = size_t{1} << (8 * size_of(dtype()));
  const auto permutation = [&](size_t factor, size_t shift) {
    Bytes elements(codes * size_of(dtype()));
    for (size_t code = 0; code < codes; ++code) {
      const size_t other = code * factor + shift;  // odd factor, modulo a power of two
      std::memcpy(&elements[code * size_of(dtype())], &other, size_of(dtype()));
    }
    return elements;
  };
  const Bytes all = permutation(1, 0);
  ASSERT_TRUE(matches(dtype(), reduce(ReduceOp::sum, {all}).data(), all));
  for (size_t round = 0; round < 8; ++round) {
    const std::vector<Bytes> inputs = {all, permutation(8 * round + 37, 7919 * round),
                                       permutation(16 * round + 5, 104729 * round)};
    for (const ReduceOp op : {ReduceOp::sum, ReduceOp::product, ReduceOp::max, ReduceOp::avg}) {
      const Bytes expected = reference_reduce(inputs, codes, dtype(), op, 3);
      ASSERT_TRUE(matches(dtype(), reduce(op, inputs, 3).data(), expected)) << to_string(op);
    }
  }
}

TEST_P(Kernels, ScaleMultiplies) {
  const kernels::ScaleFunction function = table().scale[static_cast<size_t>(dtype())];
  ASSERT_EQ(function != nullptr, is_float(dtype()));
  if (function == nullptr) return;
  for (const size_t count : kLengths) {
    for (const double factor : {0.5, 3.0, -1.0 / 3, 0.0}) {
      const Bytes input = random_elements(dtype(), count, random_);
      const Bytes expected = reference_scale(input, count, dtype(), factor);
      Buffer in_place(input, 1);
      function(in_place.data(), in_place.data(), count, factor);
      ASSERT_TRUE(matches(dtype(), in_place.data(), expected)) << count << " x " << factor;
      Buffer separate(Bytes(input.size()), 3);
      function(separate.data(), input.data(), count, factor);
      ASSERT_TRUE(matches(dtype(), separate.data(), expected)) << count << " x " << factor;
    }
  }
}

std::string case_name(const testing::TestParamInfo<Kernels::ParamType>& info) {
  const auto& [table, dtype] = info.param;
  return std::string(table->isa) + "_" + to_string(dtype);
}

auto every_isa_with(bool (*condition)(DType)) {
  std::vector<DType> dtypes = all_dtypes();
  std::erase_if(dtypes, [=](DType dtype) { return !condition(dtype); });
  return testing::Combine(testing::ValuesIn(kernels::runnable_tables()), testing::ValuesIn(dtypes));
}

bool any(DType) { return true; }
bool is_small_float(DType dtype) { return is_real_float(dtype) && size_of(dtype) <= 2; }

INSTANTIATE_TEST_SUITE_P(Isa, Kernels, every_isa_with(any), case_name);
INSTANTIATE_TEST_SUITE_P(Isa, FloatKernels, every_isa_with(is_real_float), case_name);
INSTANTIATE_TEST_SUITE_P(Isa, SmallFloatKernels, every_isa_with(is_small_float), case_name);

// --- the public functions

template <typename T>
T reduce_two(T a, T b, DType dtype, ReduceOp op, uint64_t divisor = 1) {
  const void* srcs[] = {&a, &b};
  T result{};
  kernels::reduce(&result, srcs, 2, 1, dtype, op, divisor);
  return result;
}

TEST(Reduce, IsDefinedWhereTheHeaderSaysSo) {
  for (const DType dtype : all_dtypes()) {
    for (const ReduceOp op : all_ops()) {
      bool expected = true;
      if (op == ReduceOp::band || op == ReduceOp::bor || op == ReduceOp::bxor) {
        expected = !is_float(dtype);
      } else if (op == ReduceOp::min || op == ReduceOp::max) {
        expected = !is_complex(dtype);
      } else if (op == ReduceOp::avg) {
        expected = dtype != DType::boolean;
      }
      EXPECT_EQ(kernels::supports(dtype, op), expected) << to_string(dtype) << to_string(op);
    }
    EXPECT_EQ(kernels::supports_scale(dtype), is_float(dtype)) << to_string(dtype);
  }
}

TEST(Reduce, RefusesNumbersThatNameNothing) {
  EXPECT_FALSE(kernels::supports(static_cast<DType>(kNumDTypes), ReduceOp::sum));
  EXPECT_FALSE(kernels::supports(DType::f32, static_cast<ReduceOp>(kNumReduceOps)));
  EXPECT_FALSE(kernels::supports_scale(static_cast<DType>(255)));
}

TEST(Reduce, EveryInstructionSetDefinesTheSameEntries) {
  const auto tables = kernels::runnable_tables();
  for (const KernelTable* table : tables) {
    for (size_t row = 0; row < kNumDTypes; ++row) {
      EXPECT_EQ(table->scale[row] == nullptr, tables[0]->scale[row] == nullptr);
      for (size_t column = 0; column < kNumReduceOps; ++column) {
        EXPECT_EQ(table->reduce[row][column] == nullptr, tables[0]->reduce[row][column] == nullptr);
      }
    }
  }
  EXPECT_STREQ(kernels::isa_name(), tables.back()->isa);
}

TEST(Reduce, IntegersWrap) {
  EXPECT_EQ(reduce_two<int8_t>(127, 1, DType::i8, ReduceOp::sum), -128);
  EXPECT_EQ(reduce_two<uint16_t>(65535, 2, DType::u16, ReduceOp::sum), 1);
  EXPECT_EQ(reduce_two<int32_t>(INT32_MIN, -1, DType::i32, ReduceOp::product), INT32_MIN);
  EXPECT_EQ(reduce_two<uint64_t>(UINT64_MAX, 3, DType::u64, ReduceOp::product), UINT64_MAX - 2);
  EXPECT_EQ(reduce_two<int64_t>(INT64_MAX, 1, DType::i64, ReduceOp::sum), INT64_MIN);
}

TEST(Reduce, IntegerAverageTruncates) {
  EXPECT_EQ(reduce_two<int8_t>(-4, -3, DType::i8, ReduceOp::avg, 2), -3);
  EXPECT_EQ(reduce_two<uint64_t>(UINT64_MAX, 0, DType::u64, ReduceOp::avg, 2), INT64_MAX);
  EXPECT_EQ(reduce_two<int8_t>(100, 0, DType::i8, ReduceOp::avg, 300), 0);
}

TEST(Reduce, AverageByOneIsTheSum) {
  EXPECT_EQ(reduce_two<float>(1.5f, 2.0f, DType::f32, ReduceOp::avg, 1), 3.5f);
}

// 256 + 0.5 + 0.5: rounded after every addition bf16 would stay at 256, rounded once it gives 256
// too (the step is 2), and with four halves 258.
TEST(Reduce, SmallFloatsAreRoundedOnceAfterAllSources) {
  std::vector<Bytes> inputs = {encode(DType::bf16, {256}), encode(DType::bf16, {0.5})};
  std::vector<const void*> srcs = {inputs[0].data()};
  for (int i = 0; i < 4; ++i) srcs.push_back(inputs[1].data());
  Bytes result(2);
  kernels::reduce(result.data(), srcs.data(), srcs.size(), 1, DType::bf16, ReduceOp::sum, 1);
  EXPECT_EQ(decode(DType::bf16, result, 0), 258);
}

// What torch gives for Float8_e4m3fn and Float8_e5m2 where formats of 8 bits disagree: e4m3fn has
// no infinity and does not saturate, e5m2 rounds up to infinity.
TEST(Reduce, Float8OverflowsAsTorchDoes) {
  const auto sum = [](DType dtype, double a, double b) {
    const Bytes left = encode(dtype, {a});
    const Bytes right = encode(dtype, {b});
    return reduce_two<uint8_t>(left[0], right[0], dtype, ReduceOp::sum);
  };
  EXPECT_EQ(sum(DType::f8e4m3, 448, 0), 0x7e);
  EXPECT_EQ(sum(DType::f8e4m3, 448, 16), 0x7e);  // a tie, to the even 448
  EXPECT_EQ(sum(DType::f8e4m3, 448, 18), 0x7e);
  EXPECT_EQ(sum(DType::f8e4m3, -448, -448), 0xfe);
  EXPECT_EQ(sum(DType::f8e4m3, kNan, 1) & 0x7f, 0x7f);
  EXPECT_EQ(sum(DType::f8e5m2, 57344, 3584), 0x7b);
  EXPECT_EQ(sum(DType::f8e5m2, 57344, 4096), 0x7c);  // a tie, to infinity
  EXPECT_EQ(sum(DType::f8e5m2, -57344, -57344), 0xfc);
}

TEST(Reduce, BooleanTakesEveryByteButZeroForTrue) {
  EXPECT_EQ(reduce_two<uint8_t>(2, 4, DType::boolean, ReduceOp::product), 1);
  EXPECT_EQ(reduce_two<uint8_t>(2, 4, DType::boolean, ReduceOp::bxor), 0);
  EXPECT_EQ(reduce_two<uint8_t>(0, 4, DType::boolean, ReduceOp::sum), 1);
}

TEST(Reduce, OneSourceIsCopied) {
  const float src[] = {1, 2, 3};
  const void* srcs[] = {src};
  float dst[3] = {};
  kernels::reduce(dst, srcs, 1, 3, DType::f32, ReduceOp::max, 1);
  EXPECT_TRUE(std::equal(src, src + 3, dst));
}

TEST(StreamCopy, CopiesEveryByteAndNoOther) {
  constexpr size_t kBytes = 40'000;
  std::vector<uint8_t> source(kBytes);
  for (size_t i = 0; i < kBytes; ++i) source[i] = static_cast<uint8_t>(1 + (i + i / 251) % 255);
  for (size_t from : {0ul, 1ul, 63ul}) {
    for (size_t to : {0ul, 1ul, 40ul, 63ul, 64ul}) {
      for (size_t bytes : {0ul, 1ul, 63ul, 64ul, 65ul, 127ul, 128ul, 200ul, 700ul, 4096ul, 16'383ul,
                           16'384ul, 16'385ul, 16'500ul, 39'000ul}) {
        std::vector<uint8_t> target(kBytes, 0);
        std::vector<uint8_t> expected = target;
        kernels::stream_copy(target.data() + to, source.data() + from, bytes);
        std::copy_n(source.begin() + static_cast<ptrdiff_t>(from), bytes,
                    expected.begin() + static_cast<ptrdiff_t>(to));
        ASSERT_EQ(target, expected) << bytes << " bytes from " << from << " to " << to;
      }
    }
  }
}

TEST(ReduceDeathTest, BrokenPromisesAbort) {
  float value = 1;
  const void* srcs[] = {&value};
  EXPECT_DEATH(kernels::reduce(&value, srcs, 0, 1, DType::f32, ReduceOp::sum, 1), "num_srcs");
  EXPECT_DEATH(kernels::reduce(&value, srcs, 1, 1, DType::f32, ReduceOp::band, 1), "function");
  EXPECT_DEATH(kernels::reduce(&value, srcs, 1, 1, DType::f32, ReduceOp::avg, 0), "divisor");
}

}  // namespace
}  // namespace dmlcomm::test
