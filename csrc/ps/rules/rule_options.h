// The parts of which rule.cc makes rules: their options, and a maker of each.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "ps/rules/rule.h"

namespace dmlcomm::ps {

// The values that an option may have: finite, not negative, and these.
struct OptionDomain {
  const char* text;
  bool (*holds)(double value);
};
inline constexpr OptionDomain kNotNegative{"at least 0", [](double) { return true; }};
inline constexpr OptionDomain kBelowOne{"at least 0 and less than 1",
                                        [](double v) { return v < 1; }};
inline constexpr OptionDomain kUpToOne{"from 0 to 1", [](double v) { return v <= 1; }};
inline constexpr OptionDomain kZeroOrOne{"0 or 1", [](double v) { return v == 0 || v == 1; }};

struct OptionSpec {
  const char* name;
  double default_value;
  const OptionDomain* domain;
};

// The value of each option of a rule.
using OptionValues = std::map<std::string, double>;

// The defaults of `specs`, replaced by what is in `given`; invalid_argument, with all that the rule
// has, for an option that it does not have or a value outside its domain.
Result<OptionValues> read_options(const std::string& rule, const std::vector<OptionSpec>& specs,
                                  const std::map<std::string, double>& given);

// Each takes a value for every option that rule.cc lists for it. Rules without a learning rate, for
// integers too:
std::unique_ptr<Rule> make_assign(const OptionValues& options);
std::unique_ptr<Rule> make_add(const OptionValues& options);
// With a learning rate, for f32 and f64:
std::unique_ptr<Rule> make_sgd(const OptionValues& options);
std::unique_ptr<Rule> make_adam(const OptionValues& options);
std::unique_ptr<Rule> make_adamw(const OptionValues& options);
std::unique_ptr<Rule> make_adagrad(const OptionValues& options);

}  // namespace dmlcomm::ps
