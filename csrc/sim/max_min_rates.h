// max_min_rates: what flows get of links at one moment.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "sim/fair_shares.h"

namespace dmlcomm::sim {

// Priorities are tickets: 0 goes first, 255 last.
constexpr int64_t kLastPriority = 255;
constexpr double kLeastWeight = 1e-6, kMostWeight = 1e6;
// In bit/s. Levels stay finite with the least weight.
constexpr double kMostCapacity = 1e18;

// `invalid_argument` with this text.
template <typename... Parts>
Status invalid(const Parts&... parts) {
  return Status(StatusCode::invalid_argument, parts...);
}

// A flow's path, weight and priority as users give them. `who` begins the message: "flow 3".
Status check_path(const std::string& who, const std::vector<int64_t>& path, size_t num_links);
Status check_weight(const std::string& who, double weight);
Status check_priority(const std::string& who, int64_t priority);
// In bit/s: from 0.
Status check_capacity(const std::string& who, double capacity);

// The rates of all flows, by flow: max-min fair with weights among the flows of one priority, which
// share what flows of smaller priorities leave. A flow without links has an infinite rate.
// `weights` and `priorities` are empty, for 1 and 0 each, or have one entry per flow.
Result<std::vector<double>> max_min_rates(const std::vector<std::vector<int64_t>>& paths,
                                          const std::vector<double>& capacities,
                                          const std::vector<double>& weights,
                                          const std::vector<int64_t>& priorities);

}  // namespace dmlcomm::sim
