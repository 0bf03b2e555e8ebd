// The rules with a learning rate, for f32 and f64; rule.h defines them.
//
// Each takes a value for every option that rule.cc lists for it.
#pragma once

#include <memory>

#include "ps/rules/rule.h"
#include "ps/rules/rule_options.h"

namespace dmlcomm::ps {

std::unique_ptr<Rule> make_sgd(const OptionValues& options);
std::unique_ptr<Rule> make_adam(const OptionValues& options);
std::unique_ptr<Rule> make_adamw(const OptionValues& options);
std::unique_ptr<Rule> make_adagrad(const OptionValues& options);

}  // namespace dmlcomm::ps
