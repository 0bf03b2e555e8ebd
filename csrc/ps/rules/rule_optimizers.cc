#include "ps/rules/rule_options.h"

#include <cmath>

#include "base/check.h"
#include "kernels/update.h"

namespace dmlcomm::ps {
namespace {

// Common to all: the types, the number of slots, and which learning rate counts.
class Optimizer : public Rule {
 public:
  Optimizer(const char* name, double learning_rate, size_t num_slots)
      : name_(name), learning_rate_(learning_rate), num_slots_(num_slots) {}

  size_t num_slots() const override { return num_slots_; }
  double first_value(size_t) const override { return 0; }
  bool supports(DType dtype) const override { return kernels::supports_update(dtype); }

  Status apply(const UpdateRange& range) const override {
    DMLCOMM_CHECK(std::isfinite(range.scale));
    DMLCOMM_CHECK(range.step >= 1);
    if (!supports(range.dtype)) {
      return Status(StatusCode::unsupported, "update rule '", name_, "' does not support ",
                    to_string(range.dtype),
                    "; it supports f32 and f64, and 'assign' and 'add' support integers, "
                    "f16 and bf16 too");
    }
    const double rate = std::isnan(range.learning_rate) ? learning_rate_ : range.learning_rate;
    if (!std::isfinite(rate) || rate < 0) {
      return Status(
          StatusCode::invalid_argument, "update rule '", name_, "': the learning rate is ", rate,
          ", but must be finite and at least 0; NaN stands for the rule's own, ", learning_rate_);
    }
    update(range, rate);
    return Status();
  }

 private:
  virtual void update(const UpdateRange& range, double learning_rate) const = 0;

  const char* name_;
  double learning_rate_;
  size_t num_slots_;
};

class Sgd : public Optimizer {
 public:
  explicit Sgd(const OptionValues& options)
      : Optimizer("sgd", options.at("lr"), options.at("momentum") == 0 ? 0 : 1),
        momentum_(options.at("momentum")),
        dampening_(options.at("dampening")),
        nesterov_(options.at("nesterov") == 1),
        weight_decay_(options.at("weight_decay")) {}

 private:
  // The first gradient goes undampened into the momentum, as torch has it.
  void update(const UpdateRange& range, double learning_rate) const override {
    const bool is_first = range.step == 1;
    const kernels::SgdStep step{.scale = range.scale,
                                .rate = learning_rate,
                                .weight_decay = weight_decay_,
                                .momentum = momentum_,
                                .kept = is_first ? 0 : momentum_,
                                .share = is_first ? 1 : 1 - dampening_,
                                .nesterov = nesterov_};
    std::byte* const momentum = num_slots() == 0 ? nullptr : range.slots[0];
    kernels::update_sgd(range.weights, range.gradient, momentum, range.count, range.dtype, step);
  }

  double momentum_;
  double dampening_;
  bool nesterov_;
  double weight_decay_;
};

enum class WeightDecay { of_gradient, of_weights };

// Adam and AdamW. Slots: the moving averages of the gradient and of its square.
class Adam : public Optimizer {
 public:
  Adam(const char* name, WeightDecay decay, const OptionValues& options)
      : Optimizer(name, options.at("lr"), 2),
        decay_(decay),
        beta1_(options.at("beta1")),
        beta2_(options.at("beta2")),
        eps_(options.at("eps")),
        weight_decay_(options.at("weight_decay")) {}

 private:
  // Both averages start at 0; after t steps they hold the share 1 - beta^t of what they average.
  void update(const UpdateRange& range, double learning_rate) const override {
    const auto steps = static_cast<double>(range.step);
    const bool of_weights = decay_ == WeightDecay::of_weights;
    const kernels::AdamStep step{.scale = range.scale,
                                 .rate = learning_rate / (1 - std::pow(beta1_, steps)),
                                 .beta1 = beta1_,
                                 .beta2 = beta2_,
                                 .root_factor = 1 / std::sqrt(1 - std::pow(beta2_, steps)),
                                 .eps = eps_,
                                 .gradient_decay = of_weights ? 0 : weight_decay_,
                                 .kept_weight = of_weights ? 1 - learning_rate * weight_decay_ : 1};
    kernels::update_adam(range.weights, range.gradient, range.slots[0], range.slots[1], range.count,
                         range.dtype, step);
  }

  WeightDecay decay_;
  double beta1_;
  double beta2_;
  double eps_;
  double weight_decay_;
};

// Slot: the sum of the gradients' squares.
class Adagrad : public Optimizer {
 public:
  explicit Adagrad(const OptionValues& options)
      : Optimizer("adagrad", options.at("lr"), 1),
        lr_decay_(options.at("lr_decay")),
        eps_(options.at("eps")),
        initial_accumulator_value_(options.at("initial_accumulator_value")),
        weight_decay_(options.at("weight_decay")) {}

  double first_value(size_t) const override { return initial_accumulator_value_; }

 private:
  void update(const UpdateRange& range, double learning_rate) const override {
    const auto earlier_steps = static_cast<double>(range.step - 1);
    const kernels::AdagradStep step{.scale = range.scale,
                                    .rate = learning_rate / (1 + earlier_steps * lr_decay_),
                                    .weight_decay = weight_decay_,
                                    .eps = eps_};
    kernels::update_adagrad(range.weights, range.gradient, range.slots[0], range.count, range.dtype,
                            step);
  }

  double lr_decay_;
  double eps_;
  double initial_accumulator_value_;
  double weight_decay_;
};

}  // namespace

std::unique_ptr<Rule> make_sgd(const OptionValues& options) {
  return std::make_unique<Sgd>(options);
}

std::unique_ptr<Rule> make_adam(const OptionValues& options) {
  return std::make_unique<Adam>("adam", WeightDecay::of_gradient, options);
}

std::unique_ptr<Rule> make_adamw(const OptionValues& options) {
  return std::make_unique<Adam>("adamw", WeightDecay::of_weights, options);
}

std::unique_ptr<Rule> make_adagrad(const OptionValues& options) {
  return std::make_unique<Adagrad>(options);
}

}  // namespace dmlcomm::ps
