#include "ps/rules/rule.h"

#include <algorithm>
#include <vector>

#include "base/str_cat.h"
#include "ps/rules/rule_optimizers.h"
#include "ps/rules/rule_options.h"
#include "ps/rules/rule_sums.h"

namespace dmlcomm::ps {
namespace {

using Domain = OptionDomain;
using Make = std::unique_ptr<Rule> (*)(const OptionValues& options);

struct RuleSpec {
  const char* name;
  std::vector<OptionSpec> options;
  Make make;
};

const std::vector<RuleSpec>& rule_specs() {
  static const std::vector<RuleSpec> specs = {
      {"assign", {}, make_assign},
      {"add", {}, make_add},
      {"sgd",
       {{"lr", 1e-3, Domain::not_negative},
        {"momentum", 0, Domain::not_negative},
        {"dampening", 0, Domain::up_to_one},
        {"nesterov", 0, Domain::zero_or_one},
        {"weight_decay", 0, Domain::not_negative}},
       make_sgd},
      {"adam",
       {{"lr", 1e-3, Domain::not_negative},
        {"beta1", 0.9, Domain::below_one},
        {"beta2", 0.999, Domain::below_one},
        {"eps", 1e-8, Domain::not_negative},
        {"weight_decay", 0, Domain::not_negative}},
       make_adam},
      {"adamw",
       {{"lr", 1e-3, Domain::not_negative},
        {"beta1", 0.9, Domain::below_one},
        {"beta2", 0.999, Domain::below_one},
        {"eps", 1e-8, Domain::not_negative},
        {"weight_decay", 1e-2, Domain::not_negative}},
       make_adamw},
      {"adagrad",
       {{"lr", 1e-2, Domain::not_negative},
        {"lr_decay", 0, Domain::not_negative},
        {"eps", 1e-10, Domain::not_negative},
        {"initial_accumulator_value", 0, Domain::not_negative},
        {"weight_decay", 0, Domain::not_negative}},
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
  return Status(StatusCode::invalid_argument,
                str_cat("there is no update rule '", name, "'; choose one of ", names));
}

// Options that are allowed each by itself, but not together.
Status check_together(const std::string& name, const OptionValues& options) {
  if (name != "sgd" || options.at("nesterov") == 0) return Status();
  if (options.at("momentum") > 0 && options.at("dampening") == 0) return Status();
  return Status(StatusCode::invalid_argument,
                str_cat("update rule 'sgd': nesterov needs momentum above 0 and dampening 0, but "
                        "momentum is ",
                        options.at("momentum"), " and dampening is ", options.at("dampening")));
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
