#include "ps/rules/rule_options.h"

#include <algorithm>
#include <cmath>

#include "base/str_cat.h"

namespace dmlcomm::ps {
namespace {

const char* describe(OptionDomain domain) {
  switch (domain) {
    case OptionDomain::not_negative: return "at least 0";
    case OptionDomain::below_one: return "at least 0 and less than 1";
    case OptionDomain::up_to_one: return "from 0 to 1";
    case OptionDomain::zero_or_one: return "0 or 1";
  }
  return "any";
}

bool contains(OptionDomain domain, double value) {
  if (!std::isfinite(value) || value < 0) return false;
  switch (domain) {
    case OptionDomain::not_negative: return true;
    case OptionDomain::below_one: return value < 1;
    case OptionDomain::up_to_one: return value <= 1;
    case OptionDomain::zero_or_one: return value == 0 || value == 1;
  }
  return false;
}

std::string list_options(const std::vector<OptionSpec>& specs) {
  if (specs.empty()) return "it has none";
  std::string list = "its options are ";
  for (const OptionSpec& spec : specs) {
    if (&spec != &specs.front()) list += "; ";
    append_text(&list, str_cat(spec.name, " (", describe(spec.domain), ", default ",
                               spec.default_value, ")"));
  }
  return list;
}

}  // namespace

Result<OptionValues> read_options(const std::string& rule, const std::vector<OptionSpec>& specs,
                                  const std::map<std::string, double>& given) {
  OptionValues values;
  for (const OptionSpec& spec : specs) values[spec.name] = spec.default_value;
  for (const auto& [name, value] : given) {
    const auto spec = std::find_if(specs.begin(), specs.end(), [&name = name](const auto& known) {
      return name == known.name;
    });
    if (spec == specs.end()) {
      return Status(
          StatusCode::invalid_argument,
          str_cat("update rule '", rule, "' has no option '", name, "'; ", list_options(specs)));
    }
    if (!contains(spec->domain, value)) {
      return Status(StatusCode::invalid_argument,
                    str_cat("update rule '", rule, "': ", name, " is ", value, ", but must be ",
                            describe(spec->domain), "; ", list_options(specs)));
    }
    values[name] = value;
  }
  return values;
}

}  // namespace dmlcomm::ps
