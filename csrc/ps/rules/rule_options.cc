#include "ps/rules/rule_options.h"

#include <algorithm>
#include <cmath>

#include "base/str_cat.h"

namespace dmlcomm::ps {
namespace {

std::string list_options(const std::vector<OptionSpec>& specs) {
  if (specs.empty()) return "it has none";
  std::string list = "its options are ";
  for (const OptionSpec& spec : specs) {
    if (&spec != &specs.front()) list += "; ";
    list += str_cat(spec.name, " (", spec.domain->text, ", default ", spec.default_value, ")");
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
      return Status(StatusCode::invalid_argument, "update rule '", rule, "' has no option '", name,
                    "'; ", list_options(specs));
    }
    if (!std::isfinite(value) || value < 0 || !spec->domain->holds(value)) {
      return Status(StatusCode::invalid_argument, "update rule '", rule, "': ", name, " is ", value,
                    ", but must be ", spec->domain->text, "; ", list_options(specs));
    }
    values[name] = value;
  }
  return values;
}

}  // namespace dmlcomm::ps
