// Options of update rules: their names and domains by rule, and the values for one rule.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "base/status.h"

namespace dmlcomm::ps {

// The values that an option may have, besides being finite.
enum class OptionDomain {
  not_negative,
  below_one,   // from 0, and less than 1
  up_to_one,   // from 0 to 1
  zero_or_one  // a flag
};

struct OptionSpec {
  const char* name;
  double default_value;
  OptionDomain domain;
};

// A value for every option of a rule.
using OptionValues = std::map<std::string, double>;

// The defaults of `specs`, replaced by what is in `given`; invalid_argument, with all that the rule
// has, for an option that it does not have or a value outside its domain.
Result<OptionValues> read_options(const std::string& rule, const std::vector<OptionSpec>& specs,
                                  const std::map<std::string, double>& given);

}  // namespace dmlcomm::ps
