#include "schedule/price/bml_cost.h"

#include <algorithm>
#include <vector>

namespace dmlcomm::schedule {

double bml_stage_seconds(const EstimateTerms& terms, LevelExchange exchange) {
  const bool is_ring = exchange == LevelExchange::ring;
  const auto num_levels = static_cast<uint32_t>(terms.grid.size());
  std::vector<double> busy_s(num_levels, 0);  // each rail
  double messages = 0;                        // of one step
  double rounds = 0;
  for (uint32_t t = 0; t < num_levels; ++t) {
    double set = terms.bytes / num_levels;
    messages += terms.grid[t] - 1;
    rounds += is_ring ? terms.grid[t] - 1 : 1;
    for (uint32_t step = 0; step < num_levels; ++step) {
      const uint32_t level = (step + t) % num_levels;
      const double contention = is_ring || terms.grid[level] <= 2 ? 1 : terms.contention;
      busy_s[level] += terms.beta_of_rail[level] * set * contention * (terms.grid[level] - 1) /
                       terms.grid[level];
      set /= terms.grid[level];
    }
  }
  const double longest = busy_s.empty() ? 0 : *std::max_element(busy_s.begin(), busy_s.end());
  return rounds * terms.hop_alpha + num_levels * messages * terms.overhead + longest;
}

}  // namespace dmlcomm::schedule
