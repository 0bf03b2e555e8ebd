// The loops of updates: every instruction set that this CPU runs gives the bits of the baseline,
// over lengths around the vector widths, misaligned, and touches nothing else. That the numbers are
// right is the subject of rule_test.cc, and, where there is one rounding only, of the end of this
// file.
#include "kernels/update.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "kernels/dispatch.h"
#include "tests/kernels_reference.h"

namespace dmlcomm::test {
namespace {

using kernels::AdagradStep;
using kernels::AdamStep;
using kernels::KernelTable;
using kernels::SgdStep;

constexpr uint8_t kUntouched = 0xa5;

// One way through the loops: arrays[0] is the weights, the state follows.
struct Variant {
  std::string name;
  size_t num_arrays;
  std::function<void(const KernelTable& table, size_t dtype, void* const* arrays,
                     const void* gradient, size_t count)>
      run;
};

Variant sgd(const std::string& name, const SgdStep& step) {
  return {name, step.momentum == 0 ? 1u : 2u,
          [step](const KernelTable& table, size_t dtype, void* const* arrays, const void* gradient,
                 size_t count) { table.sgd[dtype](arrays, gradient, count, step); }};
}

Variant adam(const std::string& name, const AdamStep& step) {
  return {name, 3,
          [step](const KernelTable& table, size_t dtype, void* const* arrays, const void* gradient,
                 size_t count) { table.adam[dtype](arrays, gradient, count, step); }};
}

Variant adagrad(const std::string& name, const AdagradStep& step) {
  return {name, 2,
          [step](const KernelTable& table, size_t dtype, void* const* arrays, const void* gradient,
                 size_t count) { table.adagrad[dtype](arrays, gradient, count, step); }};
}

const std::vector<Variant>& variants() {
  static const std::vector<Variant> all = {
      sgd("sgd", {1.0 / 3, 0.1, 0, 0, 0, 1, false}),
      sgd("sgd with decay", {1.0 / 3, 0.1, 0.01, 0, 0, 1, false}),
      sgd("sgd with momentum", {1.0 / 3, 0.1, 0, 0.9, 0.9, 0.7, false}),
      sgd("sgd with momentum and decay", {1.0 / 3, 0.1, 0.01, 0.9, 0.9, 0.7, false}),
      sgd("sgd with Nesterov momentum", {1.0 / 3, 0.1, 0, 0.9, 0.9, 1, true}),
      sgd("sgd with Nesterov momentum and decay", {1.0 / 3, 0.1, 0.01, 0.9, 0.9, 1, true}),
      adam("adam", {1.0 / 3, 0.1, 0.9, 0.999, 1.7, 1e-8, 0, 1}),
      adam("adam with decay", {1.0 / 3, 0.1, 0.9, 0.999, 1.7, 1e-8, 0.01, 1}),
      adam("adamw", {1.0 / 3, 0.1, 0.9, 0.999, 1.7, 1e-8, 0, 0.99}),
      adagrad("adagrad", {1.0 / 3, 0.1, 0, 1e-10}),
      adagrad("adagrad with decay", {1.0 / 3, 0.1, 0.01, 1e-10}),
      {"add scaled", 1,
       [](const KernelTable& table, size_t dtype, void* const* arrays, const void* gradient,
          size_t count) { table.add_scaled[dtype](arrays[0], gradient, count, 1.0 / 3); }}};
  return all;
}

// Magnitudes over many powers of two, so that sums round in every place. Never negative where the
// array is a sum of squares.
Bytes random_numbers(DType dtype, size_t count, bool is_signed, std::mt19937& random) {
  std::uniform_real_distribution<double> mantissa(is_signed ? -1 : 0, 1);
  std::vector<double> numbers(count);
  for (double& number : numbers) {
    number = std::ldexp(mantissa(random), static_cast<int>(random() % 24) - 16);
  }
  return encode(dtype, numbers);
}

// The arrays after two steps, each with `misalignment` untouched bytes before and one after it.
std::vector<Bytes> after_two_steps(const KernelTable& table, const Variant& variant, DType dtype,
                                   size_t count, size_t misalignment, uint32_t seed) {
  std::mt19937 random(seed);
  const size_t bytes = count * size_of(dtype);
  std::vector<Bytes> arrays;
  std::vector<void*> pointers;
  for (size_t a = 0; a < variant.num_arrays; ++a) {
    Bytes array(misalignment, kUntouched);
    const Bytes numbers = random_numbers(dtype, count, a == 0, random);
    array.insert(array.end(), numbers.begin(), numbers.end());
    array.push_back(kUntouched);
    arrays.push_back(std::move(array));
  }
  for (Bytes& array : arrays) pointers.push_back(array.data() + misalignment);
  for (int step = 0; step < 2; ++step) {
    Bytes gradient(misalignment);
    const Bytes numbers = random_numbers(dtype, count, true, random);
    gradient.insert(gradient.end(), numbers.begin(), numbers.end());
    variant.run(table, static_cast<size_t>(dtype), pointers.data(), gradient.data() + misalignment,
                count);
  }
  for (const Bytes& array : arrays) {
    for (size_t i = 0; i < misalignment; ++i) EXPECT_EQ(array[i], kUntouched);
    EXPECT_EQ(array[misalignment + bytes], kUntouched);
  }
  return arrays;
}

class Updates : public testing::TestWithParam<std::tuple<const KernelTable*, DType>> {
 protected:
  const KernelTable& table() const { return *std::get<0>(GetParam()); }
  DType dtype() const { return std::get<1>(GetParam()); }
};

TEST_P(Updates, GiveTheBitsOfTheBaselineForEveryLengthAndAlignment) {
  const auto row = static_cast<size_t>(dtype());
  const KernelTable& baseline = *kernels::runnable_tables().front();
  size_t compared = 0;
  for (const Variant& variant : variants()) {
    if (variant.name != "add scaled" && table().sgd[row] == nullptr) continue;
    ++compared;
    for (const size_t count : {0, 1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 32, 33, 64, 65, 1000}) {
      for (const size_t misalignment : {0, 1, 5}) {
        const auto seed = static_cast<uint32_t>(count * 7 + misalignment);
        const auto expected =
            after_two_steps(baseline, variant, dtype(), count, misalignment, seed);
        ASSERT_EQ(after_two_steps(table(), variant, dtype(), count, misalignment, seed), expected)
            << variant.name << " count " << count << " misalignment " << misalignment;
      }
    }
  }
  EXPECT_EQ(compared, size_of(dtype()) == 2 ? 1 : variants().size());
}

// An element of any length and place has the value that it has alone: nothing depends on the
// neighbours or on which loop it falls into.
TEST_P(Updates, TreatEveryElementAlike) {
  const size_t count = 77;
  const size_t element_bytes = size_of(dtype());
  const auto row = static_cast<size_t>(dtype());
  for (const Variant& variant : variants()) {
    if (variant.name != "add scaled" && table().sgd[row] == nullptr) continue;
    std::mt19937 random(5);
    std::vector<Bytes> together;
    std::vector<void*> pointers;
    for (size_t a = 0; a < variant.num_arrays; ++a) {
      together.push_back(random_numbers(dtype(), count, a == 0, random));
    }
    std::vector<Bytes> alone = together;
    const Bytes gradient = random_numbers(dtype(), count, true, random);
    for (Bytes& array : together) pointers.push_back(array.data());
    variant.run(table(), row, pointers.data(), gradient.data(), count);
    for (size_t i = 0; i < count; ++i) {
      pointers.clear();
      for (Bytes& array : alone) pointers.push_back(array.data() + i * element_bytes);
      variant.run(table(), row, pointers.data(), gradient.data() + i * element_bytes, 1);
    }
    EXPECT_EQ(together, alone) << variant.name;
  }
}

// A product and a sum, each rounded once to the type that computes, and once more to f16 or bf16.
TEST_P(Updates, AddScaledRoundsAsDefined) {
  std::mt19937 random(11);
  const size_t count = 1000;
  const Bytes before = random_numbers(dtype(), count, true, random);
  const Bytes gradient = random_numbers(dtype(), count, true, random);
  for (const double scale : {1.0, 0.25, 1.0 / 3, -7.5}) {
    Bytes weights = before;
    table().add_scaled[static_cast<size_t>(dtype())](weights.data(), gradient.data(), count, scale);
    for (size_t i = 0; i < count; ++i) {
      const double w = decode(dtype(), before, i);
      const double g = decode(dtype(), gradient, i);
      double expected = 0;
      // volatile: no multiplication that is fused with the addition.
      if (dtype() == DType::f64) {
        volatile double product = g * scale;
        expected = w + product;
      } else {
        volatile float product = static_cast<float>(g) * static_cast<float>(scale);
        expected = static_cast<float>(w) + product;
      }
      ASSERT_EQ(decode(dtype(), weights, i), decode(dtype(), encode(dtype(), {expected}), 0))
          << "element " << i << " scale " << scale;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Isa, Updates,
                         testing::Combine(testing::ValuesIn(kernels::runnable_tables()),
                                          testing::Values(DType::f16, DType::bf16, DType::f32,
                                                          DType::f64)),
                         [](const auto& info) {
                           return std::string(std::get<0>(info.param)->isa) + "_" +
                                  to_string(std::get<1>(info.param));
                         });

// --- the public functions

TEST(Update, IsDefinedWhereTheHeaderSaysSo) {
  for (size_t i = 0; i < kNumDTypes; ++i) {
    const auto dtype = static_cast<DType>(i);
    const bool is_half = dtype == DType::f16 || dtype == DType::bf16;
    const bool is_wide = dtype == DType::f32 || dtype == DType::f64;
    EXPECT_EQ(kernels::supports_update(dtype), is_wide) << to_string(dtype);
    EXPECT_EQ(kernels::supports_add_scaled(dtype), is_wide || is_half) << to_string(dtype);
  }
  EXPECT_FALSE(kernels::supports_update(static_cast<DType>(kNumDTypes)));
  EXPECT_FALSE(kernels::supports_add_scaled(static_cast<DType>(255)));
}

TEST(Update, TouchesNoMomentumWhereThereIsNone) {
  float weight = 1;
  const float gradient = 2;
  kernels::update_sgd(&weight, &gradient, nullptr, 1, DType::f32, {0.5, 0.25, 0, 0, 0, 1, false});
  EXPECT_EQ(weight, 0.75f);
}

TEST(Update, TermsThatAreOffDoNotMakeNanOfInfiniteWeights) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const float gradient = 1;
  float weight = kInfinity;
  float first = 0;
  float second = 0;
  kernels::update_sgd(&weight, &gradient, &first, 1, DType::f32, {1, 0.1, 0, 0.9, 0, 1, true});
  EXPECT_EQ(weight, kInfinity);
  kernels::update_adam(&weight, &gradient, &first, &second, 1, DType::f32,
                       {1, 0.1, 0.9, 0.999, 1, 1e-8, 0, 1});
  EXPECT_EQ(weight, kInfinity);
  kernels::update_adagrad(&weight, &gradient, &second, 1, DType::f32, {1, 0.1, 0, 1e-10});
  EXPECT_EQ(weight, kInfinity);
}

TEST(UpdateDeathTest, WhatIsNotDefinedAborts) {
  uint64_t memory = 0;
  EXPECT_DEATH(kernels::add_scaled(&memory, &memory, 1, DType::i32, 1), "function");
  EXPECT_DEATH(kernels::update_adagrad(&memory, &memory, &memory, 1, DType::f16, {}), "function");
}

}  // namespace
}  // namespace dmlcomm::test
