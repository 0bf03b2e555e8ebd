#include "ps/rules/rule.h"

#include <algorithm>
#include <vector>

#include "ps/rules/rule_options.h"

namespace dmlcomm::ps {
namespace {

using Make = std::unique_ptr<Rule> (*)(const OptionValues& options);

struct RuleSpec {
  const char* name;
  std::vector<OptionSpec> options;
  Make make;
};

std::vector<OptionSpec> adam_options(double weight_decay) {
  return {{"lr", 1e-3, &kNotNegative},
          {"beta1", 0.9, &kBelowOne},
          {"beta2", 0.999, &kBelowOne},
          {"eps", 1e-8, &kNotNegative},
          {"weight_decay", weight_decay, &kNotNegative}};
}

const std::vector<RuleSpec>& rule_specs() {
  static const std::vector<RuleSpec> specs = {
      {"assign", {}, make_assign},
      {"add", {}, make_add},
      {"sgd",
       {{"lr", 1e-3, &kNotNegative},
        {"momentum", 0, &kNotNegative},
        {"dampening", 0, &kUpToOne},
        {"nesterov", 0, &kZeroOrOne},
        {"weight_decay", 0, &kNotNegative}},
       make_sgd},
      {"adam", adam_options(0), make_adam},
      {"adamw", adam_options(1e-2), make_adamw},
      {"adagrad",
       {{"lr", 1e-2, &kNotNegative},
        {"lr_decay", 0, &kNotNegative},
        {"eps", 1e-10, &kNotNegative},
        {"initial_accumulator_value", 0, &kNotNegative},
        {"weight_decay", 0, &kNotNegative}},
       make_adagrad},
  };
  return specs;
}

Status unknown_rule(const std::string& name) {
  std::string names;
  for (const RuleSpec& spec : rule_specs()) {
    if (!names.empty()) names += ", ";
    names += spec.name;
  }
  return Status(StatusCode::invalid_argument, "there is no update rule '", name,
                "'; choose one of ", names);
}

// Options that are allowed each by itself, but not together.
Status check_together(const std::string& name, const OptionValues& options) {
  if (name != "sgd" || options.at("nesterov") == 0) return Status();
  if (options.at("momentum") > 0 && options.at("dampening") == 0) return Status();
  return Status(StatusCode::invalid_argument,
                "update rule 'sgd': nesterov needs momentum above 0 and dampening 0, but "
                "momentum is ",
                options.at("momentum"), " and dampening is ", options.at("dampening"));
}

}  // namespace

Result<std::unique_ptr<Rule>> make_rule(const std::string& name,
                                        const std::map<std::string, double>& options) {
  const auto& specs = rule_specs();
  const auto spec = std::find_if(specs.begin(), specs.end(),
                                 [&](const RuleSpec& known) { return name == known.name; });
  if (spec == specs.end()) return unknown_rule(name);
  const Result<OptionValues> values = read_options(name, spec->options, options);
  if (!values.ok()) return values.status();
  DMLCOMM_RETURN_IF_ERROR(check_together(name, *values));
  return spec->make(*values);
}

}  // namespace dmlcomm::ps
