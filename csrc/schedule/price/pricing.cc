#include "schedule/price/pricing.h"

#include <bit>
#include <string>

#include "base/str_cat.h"
#include "schedule/price/cost_model.h"

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

bool has_one_count(OpKind kind) {
  return kind == OpKind::all_reduce || kind == OpKind::reduce || kind == OpKind::broadcast;
}

OpShape shape_of(OpKind kind, uint32_t num_ranks, uint64_t bytes, uint32_t element_bytes) {
  OpShape shape;
  shape.kind = kind;
  shape.num_ranks = num_ranks;
  shape.element_bytes = element_bytes;
  const uint64_t elements = bytes / element_bytes;
  if (has_one_count(kind)) shape.counts = {elements};
  if (has_one_count(kind) || kind == OpKind::barrier) return shape;
  for (uint32_t rank = 0; rank < num_ranks; ++rank) {
    shape.counts.push_back(elements / num_ranks + (rank < elements % num_ranks ? 1 : 0));
  }
  return shape;
}

// Of all_to_all, whose ranks all send the same to rank p, that differs by rank.
OpShape shape_of_rank(OpShape shape, uint32_t rank) {
  shape.rank = rank;
  if (shape.kind == OpKind::all_to_all) {
    shape.recv_counts.assign(shape.num_ranks, shape.counts[rank]);
  }
  return shape;
}

// Whether all ranks do the same at the same time, so that one of them stands for all.
bool is_lockstep(const Algorithm& algorithm, const topology::Topology& topology) {
  switch (algorithm.kind) {
    case OpKind::all_reduce:
    case OpKind::all_gather:
    case OpKind::reduce_scatter:
    case OpKind::all_to_all:
    case OpKind::barrier: break;
    default: return false;  // the root does something else
  }
  const std::string name = algorithm.name;
  // Of a host's ranks one sends to the next host, and on a grid the next host is on another level
  // for some ranks.
  if (name == "ring") return topology.max_ranks_per_host() == 1 && topology.grid.empty();
  // Others fold the ranks beyond the power of two.
  if (name == "recursive_doubling" || name == "halving_doubling" || name == "halving") {
    return std::has_single_bit(topology.num_ranks());
  }
  return name == "direct" || name == "bml" || name == "bml_ring" || name == "bruck" ||
         name == "pairwise" || name == "dissemination";
}

// Whether one rank's schedule grows slower than the group: 16 steps where others take 65,536.
bool has_short_schedule(const Algorithm& algorithm) {
  const std::string name = algorithm.name;
  if (algorithm.kind == OpKind::barrier) return true;
  return algorithm.kind == OpKind::all_reduce && name != "direct" && name != "ring";
}

// The algorithm's closed form, and what its schedules tell where there are not too many.
Price price_one(const Algorithm& algorithm, const topology::Topology& topology,
                const OpShape& shape, uint64_t bytes) {
  Price price{&algorithm, 0, PricedBy::formula, std::nullopt};
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
  const bool is_small =
      shape.num_ranks <= kMostRanksOfLongSchedules || has_short_schedule(algorithm);
  if (is_small && is_lockstep(algorithm, topology)) {
    const Schedule schedule = algorithm.generate(shape_of_rank(shape, 0), topology);
    if (!price.traffic) {
      price.traffic = count_traffic_in_lockstep(topology, schedule, 0, shape.element_bytes);
    }
    if (price.traffic->messages <= kMostLockstepMessages) {
      price.priced_by = PricedBy::lockstep;
      price.seconds = simulate_in_lockstep(topology, schedule, 0, shape.element_bytes);
      return price;
    }
  }
  price.seconds = algorithm.seconds(cost_terms(topology, static_cast<double>(bytes)));
  return price;
}

}  // namespace

Result<std::vector<Price>> price_all(const topology::Topology& topology, OpKind kind,
                                     uint64_t bytes, uint32_t element_bytes) {
  DMLCOMM_RETURN_IF_ERROR(topology::validate(topology));
  if (element_bytes == 0) {
    return Status(StatusCode::invalid_argument, "an element has one byte or more");
  }
  const OpShape shape = shape_of(kind, topology.num_ranks(), bytes, element_bytes);
  std::vector<Price> prices;
  for (const Algorithm& algorithm : all_algorithms()) {
    if (algorithm.kind != kind || !algorithm.applies(topology)) continue;
    prices.push_back(price_one(algorithm, topology, shape, bytes));
  }
  if (!prices.empty()) return prices;
  return Status(StatusCode::invalid_argument, str_cat(to_string(kind), " has no algorithm"));
}

}  // namespace dmlcomm::schedule
