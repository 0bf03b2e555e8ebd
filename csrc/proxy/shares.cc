#include "proxy/shares.h"

#include <algorithm>
#include <cmath>

#include "base/config.h"

namespace dmlcomm::proxy {

std::vector<double> shares_of(std::span<const unsigned> priorities, const SharePolicy& policy) {
  std::vector<double> shares;
  if (priorities.empty()) return shares;
  const unsigned first = *std::min_element(priorities.begin(), priorities.end());
  double all_first = 0, all_behind = 0;
  for (const unsigned priority : priorities) {
    const double by_weight = std::exp2(-static_cast<double>(priority - first));
    shares.push_back(policy.is_strict ? 1 : by_weight);
    (priority == first ? all_first : all_behind) += shares.back();
  }
  if (all_behind == 0) {
    for (double& share : shares) share /= all_first;
    return shares;
  }
  const double by_weights = policy.is_strict ? 0 : all_behind / (all_first + all_behind);
  const double behind = std::max(policy.floor, by_weights);
  for (size_t i = 0; i < shares.size(); ++i) {
    const bool is_first = priorities[i] == first;
    shares[i] *= is_first ? (1 - behind) / all_first : behind / all_behind;
  }
  return shares;
}

uint8_t dscp_of_class(unsigned priority, unsigned num_classes) {
  const unsigned place = priority * num_classes / (kMaxJobPriority + 1);
  return static_cast<uint8_t>(place + 1 == num_classes ? 0 : place + 1);
}

}  // namespace dmlcomm::proxy
