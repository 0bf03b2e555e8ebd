// Update rules: sums of every type, and what make_rule accepts. Those with a learning rate have
// rule_optimizers_test.cc.
#include "ps/rules/rule.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "kernels/reduce.h"
#include "tests/kernels_reference.h"
#include "tests/rule_weights.h"

namespace dmlcomm::test {
namespace {

using ps::make_rule;
using ps::Rule;
using Options = std::map<std::string, double>;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

// --- assign and add

const DType kSummable[] = {DType::u8,  DType::i8,  DType::u16, DType::i16,  DType::u32, DType::i32,
                           DType::u64, DType::i64, DType::f16, DType::bf16, DType::f32, DType::f64};

class Sums : public testing::TestWithParam<DType> {
 protected:
  bool is_integer() const { return !kernels::supports_scale(GetParam()); }
  bool is_unsigned() const {
    return is_integer() && std::string(to_string(GetParam())).front() == 'u';
  }
  // Small whole numbers, which every type holds: -60 to 60, or 0 to 120.
  std::vector<double> numbers(size_t count, size_t seed) const {
    std::vector<double> values(count);
    for (size_t i = 0; i < count; ++i) {
      values[i] = static_cast<double>((i * 37 + seed) % 121) - (is_unsigned() ? 0 : 60);
    }
    return values;
  }
};

TEST_P(Sums, WithScaleOneTheyCopyAndAdd) {
  const auto assign = rule_of("assign");
  const auto add = rule_of("add");
  for (const size_t count : {0, 1, 7, 33, 129, 5000}) {
    for (const size_t misalignment : {0, 1}) {
      const std::vector<double> before = numbers(count, 5);
      const std::vector<double> gradient = numbers(count, 50);
      Weights assigned(*assign, GetParam(), before, misalignment);
      Weights added(*add, GetParam(), before, misalignment);
      ASSERT_TRUE(assigned.update(*assign, gradient, 1, 1).ok());
      ASSERT_TRUE(added.update(*add, gradient, 1, 1).ok());
      const Bytes sum = reference_reduce({encode(GetParam(), before), encode(GetParam(), gradient)},
                                         count, GetParam(), ReduceOp::sum, 1);
      for (size_t i = 0; i < count; ++i) {
        ASSERT_EQ(assigned.value(0, i), gradient[i]) << i;
        ASSERT_EQ(added.value(0, i), decode(GetParam(), sum, i)) << i;
      }
    }
  }
}

// 5,000 elements are several blocks of add's intermediate quotients for every type.
TEST_P(Sums, WithAMeanTheyDivideAndIntegersTruncate) {
  const auto assign = rule_of("assign");
  const auto add = rule_of("add");
  const size_t count = 5000;
  for (const double n : {2.0, 3.0, 7.0, 300.0}) {
    const std::vector<double> gradient = numbers(count, 50);
    Weights assigned(*assign, GetParam(), numbers(count, 5), 1);
    Weights added(*add, GetParam(), std::vector<double>(count, 1), 1);
    ASSERT_TRUE(assigned.update(*assign, gradient, 1 / n, 1).ok());
    ASSERT_TRUE(added.update(*add, gradient, 1 / n, 1).ok());
    for (size_t i = 0; i < count; ++i) {
      // One rounding of the coarsest type, bf16, is 1/256 of at most 64.
      const double mean = is_integer() ? std::trunc(gradient[i] / n) : gradient[i] / n;
      const double tolerance = is_integer() ? 0 : 0.25;
      ASSERT_NEAR(assigned.value(0, i), mean, tolerance) << i << " / " << n;
      ASSERT_NEAR(added.value(0, i), 1 + mean, tolerance) << i << " / " << n;
    }
  }
}

TEST_P(Sums, IntegersTakeNoScaleButOneOverAWholeNumber) {
  for (const std::string name : {"assign", "add"}) {
    const auto rule = rule_of(name);
    for (const double scale : {0.0, 2.0, -1.0, 0.3, 1e-12}) {
      Weights weights(*rule, GetParam(), {4, 5, 6}, 0);
      const std::vector<Bytes> before = weights.arrays();
      const Status status = weights.update(*rule, {1, 2, 3}, scale, 1);
      ASSERT_EQ(status.ok(), !is_integer()) << scale;
      if (status.ok()) continue;
      EXPECT_EQ(status.code(), StatusCode::invalid_argument);
      EXPECT_NE(status.message().find("1/n only"), std::string::npos) << status;
      EXPECT_EQ(weights.arrays(), before);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(DType, Sums, testing::ValuesIn(kSummable),
                         [](const auto& info) { return std::string(to_string(info.param)); });

TEST(SumRules, TakeEveryDivisorUpToTheLargest) {
  const auto rule = rule_of("assign");
  std::mt19937_64 random(9);
  std::vector<uint64_t> divisors = {1, 2, 3, 49, 65535, 4294967295, 4294967296};
  for (int i = 0; i < 10000; ++i) divisors.push_back(1 + random() % 4294967296);
  for (const uint64_t divisor : divisors) {
    const auto dividend = static_cast<int64_t>(random() >> 1);
    int64_t weight = 0;
    ASSERT_TRUE(rule->apply({.dtype = DType::i64,
                             .weights = bytes_of(&weight),
                             .gradient = bytes_of(static_cast<const void*>(&dividend)),
                             .slots = nullptr,
                             .count = 1,
                             .scale = 1 / static_cast<double>(divisor),
                             .step = 1,
                             .learning_rate = kNan})
                    .ok());
    ASSERT_EQ(weight, dividend / static_cast<int64_t>(divisor)) << divisor;
  }
}

// 256 + 3 x 1/3 is 257 in f32 and 256 in bf16, whose step is 2 there; 256 + 5 x 1/3 is 258.
TEST(SumRules, SmallFloatsAreRoundedOnce) {
  const auto rule = rule_of("add");
  Weights weights(*rule, DType::bf16, {256, 256}, 0);
  ASSERT_TRUE(weights.update(*rule, {3, 5}, 1.0 / 3, 1).ok());
  EXPECT_EQ(weights.value(0, 0), 256);
  EXPECT_EQ(weights.value(0, 1), 258);
}

// --- what rules support, and make_rule

TEST(Rules, SupportTheTypesThatTheHeaderNames) {
  for (const std::string name : {"assign", "add", "sgd", "adam", "adamw", "adagrad"}) {
    const auto rule = rule_of(name);
    const bool is_sum = name == "assign" || name == "add";
    for (size_t i = 0; i < kNumDTypes; ++i) {
      const auto dtype = static_cast<DType>(i);
      const bool summable =
          std::find(std::begin(kSummable), std::end(kSummable), dtype) != std::end(kSummable);
      const bool expected = is_sum ? summable : dtype == DType::f32 || dtype == DType::f64;
      EXPECT_EQ(rule->supports(dtype), expected) << name << " " << to_string(dtype);
      if (expected) continue;
      Weights weights(*rule, dtype, {1}, 0);
      const std::vector<Bytes> before = weights.arrays();
      const Status status = weights.update(*rule, {1}, 1, 1);
      EXPECT_EQ(status.code(), StatusCode::unsupported);
      EXPECT_NE(status.message().find(to_string(dtype)), std::string::npos) << status;
      EXPECT_EQ(weights.arrays(), before);
    }
  }
}

TEST(Rules, HaveTheStateTheyNeed) {
  EXPECT_EQ(rule_of("assign")->num_slots(), 0u);
  EXPECT_EQ(rule_of("add")->num_slots(), 0u);
  EXPECT_EQ(rule_of("sgd")->num_slots(), 0u);
  EXPECT_EQ(rule_of("sgd", {{"momentum", 0.5}})->num_slots(), 1u);
  EXPECT_EQ(rule_of("adam")->num_slots(), 2u);
  EXPECT_EQ(rule_of("adamw")->num_slots(), 2u);
  EXPECT_EQ(rule_of("adagrad")->num_slots(), 1u);
  EXPECT_EQ(rule_of("adagrad", {{"initial_accumulator_value", 0.25}})->first_value(0), 0.25);
  EXPECT_EQ(rule_of("adam")->first_value(1), 0);
}

void expect_refused(const std::string& name, const Options& options,
                    const std::vector<std::string>& said) {
  const Result<std::unique_ptr<Rule>> rule = make_rule(name, options);
  ASSERT_FALSE(rule.ok()) << name;
  EXPECT_EQ(rule.status().code(), StatusCode::invalid_argument);
  for (const std::string& text : said) {
    EXPECT_NE(rule.status().message().find(text), std::string::npos)
        << rule.status() << " does not say " << text;
  }
}

TEST(MakeRule, UnknownNamesListTheRules) {
  expect_refused("rmsprop", {}, {"'rmsprop'", "assign, add, sgd, adam, adamw, adagrad"});
  expect_refused("", {}, {"assign"});
}

TEST(MakeRule, UnknownOptionsListWhatTheRuleHas) {
  expect_refused("adam", {{"betas", 0.9}},
                 {"'adam' has no option 'betas'", "beta1 (at least 0 and less than 1, default 0.9)",
                  "eps (at least 0, default 1e-08)"});
  expect_refused("assign", {{"lr", 0.1}}, {"'assign' has no option 'lr'", "it has none"});
  expect_refused("sgd", {{"beta1", 0.1}}, {"nesterov (0 or 1, default 0)", "dampening"});
}

TEST(MakeRule, ValuesOutOfRangeSayTheRange) {
  expect_refused("sgd", {{"lr", -1}}, {"lr is -1", "at least 0"});
  expect_refused("sgd", {{"lr", kInfinity}}, {"lr is inf"});
  expect_refused("adagrad", {{"eps", kNan}}, {"eps is"});
  expect_refused("sgd", {{"dampening", 1.5}}, {"dampening is 1.5", "from 0 to 1"});
  expect_refused("sgd", {{"nesterov", 0.5}}, {"nesterov is 0.5", "0 or 1"});
  expect_refused("adamw", {{"beta2", 1}}, {"beta2 is 1", "less than 1"});
}

TEST(MakeRule, NesterovNeedsUndampedMomentum) {
  expect_refused("sgd", {{"nesterov", 1}}, {"momentum above 0", "momentum is 0"});
  expect_refused("sgd", {{"nesterov", 1}, {"momentum", 0.9}, {"dampening", 0.5}},
                 {"dampening is 0.5"});
}

TEST(RulesDeathTest, BrokenPromisesAbort) {
  const auto rule = rule_of("sgd");
  Weights weights(*rule, DType::f32, {1}, 0);
  EXPECT_DEATH((void)weights.update(*rule, {1}, kNan, 1), "scale");
  EXPECT_DEATH((void)weights.update(*rule, {1}, 1, 0), "step");
}

}  // namespace
}  // namespace dmlcomm::test
