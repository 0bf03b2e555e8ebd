// The rules without a learning rate, for integers too; rule.h defines them.
#pragma once

#include <memory>

#include "ps/rules/rule.h"
#include "ps/rules/rule_options.h"

namespace dmlcomm::ps {

std::unique_ptr<Rule> make_assign(const OptionValues& options);
std::unique_ptr<Rule> make_add(const OptionValues& options);

}  // namespace dmlcomm::ps
