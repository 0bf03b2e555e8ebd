// The rules with a learning rate against a scalar reference that follows torch.optim's formulas,
// one element at a time and in more digits.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>
#include <random>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "tests/rule_weights.h"

namespace dmlcomm::test {
namespace {

using Options = std::map<std::string, double>;
using Real = long double;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// --- the reference

// One element's weight and state.
struct Element {
  Real weight;
  Real slots[2];
};

// Options that are not given have torch's defaults.
class Reference {
 public:
  Reference(std::string name, Options options)
      : name_(std::move(name)), options_(std::move(options)) {}

  void step(Element& element, Real gradient, uint64_t step) const {
    if (name_ == "sgd") return sgd(element, gradient, step);
    if (name_ == "adagrad") return adagrad(element, gradient, step);
    adam(element, gradient, step);
  }

 private:
  Real option(const char* name, double default_value) const {
    const auto given = options_.find(name);
    return given == options_.end() ? default_value : given->second;
  }

  void sgd(Element& element, Real gradient, uint64_t step) const {
    const Real momentum = option("momentum", 0);
    gradient += option("weight_decay", 0) * element.weight;
    if (momentum != 0) {
      Real& buffer = element.slots[0];
      buffer = step == 1 ? gradient : momentum * buffer + (1 - option("dampening", 0)) * gradient;
      gradient = option("nesterov", 0) == 1 ? gradient + momentum * buffer : buffer;
    }
    element.weight -= option("lr", 1e-3) * gradient;
  }

  void adam(Element& element, Real gradient, uint64_t step) const {
    const Real lr = option("lr", 1e-3);
    const Real beta1 = option("beta1", 0.9);
    const Real beta2 = option("beta2", 0.999);
    if (name_ == "adamw") {
      element.weight *= 1 - lr * option("weight_decay", 1e-2);
    } else {
      gradient += option("weight_decay", 0) * element.weight;
    }
    Real& first = element.slots[0];
    Real& second = element.slots[1];
    first = beta1 * first + (1 - beta1) * gradient;
    second = beta2 * second + (1 - beta2) * gradient * gradient;
    const Real mean = first / (1 - std::pow(beta1, Real(step)));
    const Real square = second / (1 - std::pow(beta2, Real(step)));
    element.weight -= lr * mean / (std::sqrt(square) + option("eps", 1e-8));
  }

  void adagrad(Element& element, Real gradient, uint64_t step) const {
    gradient += option("weight_decay", 0) * element.weight;
    element.slots[0] += gradient * gradient;
    const Real rate = option("lr", 1e-2) / (1 + Real(step - 1) * option("lr_decay", 0));
    element.weight -= rate * gradient / (std::sqrt(element.slots[0]) + option("eps", 1e-10));
  }

  std::string name_;
  Options options_;
};

// --- the tests

std::vector<double> random_values(size_t count, std::mt19937& random) {
  std::uniform_real_distribution<float> uniform(-1, 1);
  std::vector<double> values(count);
  for (double& value : values) value = uniform(random);  // a float, which f64 holds too
  return values;
}

struct OptimizerCase {
  std::string label;
  std::string rule;
  Options options;
};

class Optimizers : public testing::TestWithParam<std::tuple<OptimizerCase, DType>> {
 protected:
  const OptimizerCase& optimizer() const { return std::get<0>(GetParam()); }
  DType dtype() const { return std::get<1>(GetParam()); }
};

// A step rounds a few times, relative to weights and updates of at most about 4.
TEST_P(Optimizers, MatchTheReferenceOverSeveralSteps) {
  constexpr uint64_t kSteps = 6;
  const double epsilon = dtype() == DType::f32 ? double{std::numeric_limits<float>::epsilon()}
                                               : std::numeric_limits<double>::epsilon();
  const auto rule = rule_of(optimizer().rule, optimizer().options);
  const Reference reference(optimizer().rule, optimizer().options);
  std::mt19937 random(3);
  for (const size_t count : {1, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 33, 200}) {
    for (const size_t misalignment : {0, 1}) {
      const std::vector<double> initial = random_values(count, random);
      Weights weights(*rule, dtype(), initial, misalignment);
      std::vector<Element> expected(count);
      for (size_t i = 0; i < count; ++i) {
        expected[i].weight = initial[i];
        for (size_t s = 0; s < rule->num_slots(); ++s) expected[i].slots[s] = rule->first_value(s);
      }
      for (uint64_t step = 1; step <= kSteps; ++step) {
        const std::vector<double> gradient = random_values(count, random);
        ASSERT_TRUE(weights.update(*rule, gradient, 1.0 / 3, step).ok());
        for (size_t i = 0; i < count; ++i) {
          reference.step(expected[i], Real(gradient[i]) / 3, step);
        }
      }
      for (size_t i = 0; i < count; ++i) {
        const double tolerance = 8 * kSteps * epsilon;
        ASSERT_NEAR(weights.value(0, i), double(expected[i].weight), tolerance) << i;
        for (size_t s = 0; s < rule->num_slots(); ++s) {
          ASSERT_NEAR(weights.value(1 + s, i), double(expected[i].slots[s]), tolerance) << i;
        }
      }
    }
  }
}

TEST_P(Optimizers, ALearningRateOfTheRangeTakesThePlaceOfTheirOwn) {
  std::mt19937 random(4);
  const std::vector<double> initial = random_values(20, random);
  const std::vector<double> gradient = random_values(20, random);
  const auto rule = rule_of(optimizer().rule, optimizer().options);
  Options other_options = optimizer().options;
  other_options["lr"] = 0.3;
  const auto other = rule_of(optimizer().rule, other_options);
  Weights own(*rule, dtype(), initial, 0);
  Weights given(*rule, dtype(), initial, 0);
  Weights expected(*other, dtype(), initial, 0);
  ASSERT_TRUE(own.update(*rule, gradient, 1, 1).ok());
  ASSERT_TRUE(given.update(*rule, gradient, 1, 1, 0.3).ok());
  ASSERT_TRUE(expected.update(*other, gradient, 1, 1).ok());
  EXPECT_EQ(given.arrays(), expected.arrays());
  EXPECT_NE(own.arrays(), expected.arrays());
}

TEST_P(Optimizers, RefuseLearningRatesThatAreNone) {
  const auto rule = rule_of(optimizer().rule, optimizer().options);
  Weights weights(*rule, dtype(), {1, 2}, 0);
  const std::vector<Bytes> before = weights.arrays();
  for (const double rate : {-0.1, kInfinity}) {
    const Status status = weights.update(*rule, {1, 1}, 1, 1, rate);
    EXPECT_EQ(status.code(), StatusCode::invalid_argument);
    EXPECT_NE(status.message().find("at least 0"), std::string::npos) << status;
  }
  EXPECT_EQ(weights.arrays(), before);
}

const OptimizerCase kOptimizers[] = {
    {"sgd", "sgd", {}},
    {"sgd_decay", "sgd", {{"lr", 0.1}, {"weight_decay", 0.1}}},
    {"sgd_momentum", "sgd", {{"lr", 0.1}, {"momentum", 0.9}}},
    {"sgd_damped", "sgd", {{"lr", 0.1}, {"momentum", 0.9}, {"dampening", 0.5}}},
    {"sgd_damped_decay",
     "sgd",
     {{"lr", 0.1}, {"momentum", 0.8}, {"dampening", 0.1}, {"weight_decay", 0.1}}},
    {"sgd_nesterov", "sgd", {{"lr", 0.1}, {"momentum", 0.9}, {"nesterov", 1}}},
    {"sgd_nesterov_decay",
     "sgd",
     {{"lr", 0.1}, {"momentum", 0.9}, {"nesterov", 1}, {"weight_decay", 0.1}}},
    {"adam", "adam", {}},
    {"adam_options",
     "adam",
     {{"lr", 0.1}, {"beta1", 0.3}, {"beta2", 0.9}, {"eps", 0.01}, {"weight_decay", 0.1}}},
    {"adamw", "adamw", {}},
    {"adamw_options", "adamw", {{"lr", 0.1}, {"beta1", 0}, {"weight_decay", 0.5}}},
    {"adagrad", "adagrad", {}},
    {"adagrad_options",
     "adagrad",
     {{"lr", 0.1},
      {"lr_decay", 0.2},
      {"eps", 0.01},
      {"initial_accumulator_value", 0.5},
      {"weight_decay", 0.1}}},
};

INSTANTIATE_TEST_SUITE_P(Rule, Optimizers,
                         testing::Combine(testing::ValuesIn(kOptimizers),
                                          testing::Values(DType::f32, DType::f64)),
                         [](const auto& info) {
                           return std::get<0>(info.param).label + "_" +
                                  to_string(std::get<1>(info.param));
                         });

}  // namespace
}  // namespace dmlcomm::test
