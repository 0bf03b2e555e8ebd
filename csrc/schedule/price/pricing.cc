#include "schedule/price/pricing.h"

#include <utility>

#include "schedule/planner.h"
#include "schedule/price/simulator.h"
#include "schedule/price/sized_shape.h"
#include "schedule/verify/verifier.h"

namespace dmlcomm::schedule {
namespace {

// Simulations grow with messages times concurrent messages: with 32 ranks that all send to each
// other one takes some tens of milliseconds.
constexpr uint32_t kMostSimulatedRanks = 32;
constexpr uint64_t kMostLockstepMessages = 1024;
// To count messages, the schedules of so many ranks are generated.
constexpr uint32_t kMostCountedRanks = 256;
// Building a schedule takes the square of its steps.
constexpr uint32_t kMostRanksOfLongSchedules = 1024;
// Verifying takes the elements times the steps of all ranks.
constexpr uint32_t kMostVerifiedRanks = 64;
constexpr uint64_t kVerifiedElements = 3;  // of each rank; the last one has fewer

// From the schedules, unless there are too many; then the estimate.
Price price_one(const Algorithm& algorithm, const topology::Topology& topology,
                const OpShape& shape, double estimate_s) {
  Price price;
  price.algorithm = &algorithm;
  price.seconds = estimate_s;
  if (!algorithm.is_schedule()) return price;
  if (shape.num_ranks <= kMostCountedRanks) {
    std::vector<Schedule> schedules;
    for (uint32_t rank = 0; rank < shape.num_ranks; ++rank) {
      schedules.push_back(algorithm.generate(shape_of_rank(shape, rank), topology));
    }
    price.traffic = count_traffic(topology, schedules, shape.element_bytes);
    if (shape.num_ranks <= kMostSimulatedRanks) {
      price.priced_by = PricedBy::simulation;
      price.seconds = simulate(topology, schedules, shape.element_bytes);
      return price;
    }
  }
  const bool is_small = shape.num_ranks <= kMostRanksOfLongSchedules || algorithm.is_short;
  if (is_small && algorithm.is_lockstep(topology)) {
    const Schedule schedule = algorithm.generate(shape_of_rank(shape, 0), topology);
    if (!price.traffic) {
      price.traffic = count_traffic_in_lockstep(topology, schedule, 0, shape.element_bytes);
    }
    if (price.traffic->messages <= kMostLockstepMessages) {
      price.priced_by = PricedBy::lockstep;
      price.seconds = simulate_in_lockstep(topology, schedule, 0, shape.element_bytes);
    }
  }
  return price;
}

bool can_carry(const Algorithm& algorithm, const OpShape& shape,
               const topology::Topology& topology) {
  if (algorithm.kind != shape.kind || !algorithm.applies(topology)) return false;
  return algorithm.can_carry == nullptr || algorithm.can_carry(shape, topology.memory);
}

Status check(const topology::Topology& topology, OpKind kind) {
  DMLCOMM_RETURN_IF_ERROR(topology::validate(topology));
  if (!algorithms_of(kind).empty()) return {};
  return {StatusCode::invalid_argument, to_string(kind), " has no algorithm"};
}

}  // namespace

Result<Comparison> compare(const topology::Topology& topology, const topology::Topology& job,
                           OpKind kind, uint64_t bytes, uint32_t element_bytes) {
  DMLCOMM_RETURN_IF_ERROR(check(topology, kind));
  if (element_bytes == 0) {
    return Status(StatusCode::invalid_argument, "an element has one byte or more");
  }
  Planner planner(job, "");
  DMLCOMM_RETURN_IF_ERROR(planner.status());
  const OpShape shape = sized_shape(kind, topology.num_ranks(), bytes, element_bytes);
  const Algorithm& chosen = planner.choose(shape_of_rank(shape, 0));
  Estimates estimates(topology), of_job(job);
  const auto size = static_cast<double>(bytes);
  Comparison comparison;
  std::vector<double> seconds;
  for (const Algorithm& algorithm : all_algorithms()) {
    if (!can_carry(algorithm, shape, topology)) continue;
    if (&algorithm == &chosen) comparison.chosen = comparison.prices.size();
    Price price =
        price_one(algorithm, topology, shape, estimates.seconds(algorithm.estimate, size));
    price.estimate_s = of_job.seconds(algorithm.estimate, size);
    seconds.push_back(price.seconds);
    comparison.prices.push_back(std::move(price));
  }
  comparison.fastest = chosen.is_schedule() ? cheapest_of(seconds) : comparison.chosen;
  return comparison;
}

Status verify_all(const topology::Topology& topology, OpKind kind) {
  DMLCOMM_RETURN_IF_ERROR(check(topology, kind));
  const uint32_t num_ranks = topology.num_ranks();
  if (num_ranks > kMostVerifiedRanks) {
    return {StatusCode::invalid_argument, num_ranks, " ranks are too many to verify; up to ",
            kMostVerifiedRanks, " are"};
  }
  std::vector<OpShape> shapes;
  for (uint32_t rank = 0; rank < num_ranks; ++rank) {
    shapes.push_back(
        shape_of_rank(sized_shape(kind, num_ranks, kVerifiedElements * num_ranks - 1, 1), rank));
  }
  for (const Algorithm& algorithm : all_algorithms()) {
    if (algorithm.kind != kind || !algorithm.is_schedule() || !algorithm.applies(topology))
      continue;
    std::vector<Schedule> schedules;
    for (const OpShape& shape : shapes) schedules.push_back(algorithm.generate(shape, topology));
    DMLCOMM_RETURN_IF_ERROR(check_rails(topology, schedules));
    DMLCOMM_RETURN_IF_ERROR(verify(shapes, schedules));
  }
  return {};
}

}  // namespace dmlcomm::schedule
