// BML on BCubes and grids: right for every n, k and count, and as fast as the paper says.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "base/str_cat.h"
#include "schedule/algorithms.h"
#include "schedule/algorithms/bml_shares.h"
#include "schedule/planner.h"
#include "schedule/price/simulator.h"
#include "schedule/verify/verifier.h"
#include "tests/schedule_rails.h"
#include "tests/schedule_shapes.h"
#include "tests/schedule_topologies.h"

namespace dmlcomm::schedule {
namespace {

constexpr OpKind kKinds[] = {OpKind::all_reduce, OpKind::reduce_scatter, OpKind::all_gather};

topology::Topology grid(const std::vector<uint32_t>& sizes, double bits_per_second = 200e6) {
  uint32_t num_hosts = 1;
  for (uint32_t size : sizes) num_hosts *= size;
  return topology::grid_network(one_rank_per_host(num_hosts), sizes, bits_per_second, true);
}

topology::Topology bcube(uint32_t n, uint32_t k) { return grid(std::vector<uint32_t>(k, n)); }

std::vector<Schedule> schedules_of(const topology::Topology& topology, OpKind kind,
                                   const std::vector<OpShape>& shapes, const char* name = "bml") {
  std::vector<Schedule> schedules;
  for (const OpShape& shape : shapes) {
    schedules.push_back(find_algorithm(kind, name)->generate(shape, topology));
  }
  return schedules;
}

void expect_right(const topology::Topology& topology, OpKind kind, uint64_t count,
                  uint32_t element_bytes = 1, const char* name = "bml") {
  auto shapes = even_shapes(kind, topology.num_ranks(), 0, count);
  for (OpShape& shape : shapes) shape.element_bytes = element_bytes;
  const auto schedules = schedules_of(topology, kind, shapes, name);
  const Status status = verify(shapes, schedules, Aliasing::in_place);
  EXPECT_TRUE(status.ok()) << status << "\n" << topology.grid.size() << " levels, count " << count;
  EXPECT_TRUE(check_rails(topology, schedules).ok()) << check_rails(topology, schedules);
  if (!BmlShares(topology).are_equal()) return;
  const size_t num_pieces = topology.num_ranks() * topology.grid.size();
  if (count < (kind == OpKind::all_reduce ? num_pieces : topology.grid.size())) return;
  EXPECT_TRUE(check_rails_are_not_shared(schedules).ok()) << check_rails_are_not_shared(schedules);
}

TEST(BmlTest, IsRightOnEveryBcube) {
  for (uint32_t n = 2; n <= 6; ++n) {
    for (uint32_t k = 1, num_hosts = n; k <= 4 && num_hosts <= 256; ++k, num_hosts *= n) {
      expect_right(bcube(n, k), OpKind::all_reduce, 0);
      expect_right(bcube(n, k), OpKind::all_reduce, 1);
      expect_right(bcube(n, k), OpKind::all_reduce, k * num_hosts);
      if (num_hosts > 36) continue;
      for (OpKind kind : kKinds) expect_right(bcube(n, k), kind, 1);
      for (OpKind kind : kKinds) expect_right(bcube(n, k), kind, k);
      expect_right(bcube(n, k), OpKind::all_reduce, 3 * k * num_hosts + 5);
    }
  }
}

TEST(BmlTest, IsRightOnGridsWhoseLevelsDiffer) {
  for (const std::vector<uint32_t>& sizes :
       {std::vector<uint32_t>{4, 3}, {3, 4}, {2, 3, 4}, {4, 3, 2}, {5, 2}, {2, 5}, {7, 2}}) {
    for (OpKind kind : kKinds) {
      for (uint64_t count : {0, 1, 2, 7, 29}) expect_right(grid(sizes), kind, count);
    }
    expect_right(grid(sizes), OpKind::all_reduce, 301);
  }
}

// Elements so large that messages go in chunks.
TEST(BmlTest, IsRightInChunks) {
  for (const std::vector<uint32_t>& sizes :
       {std::vector<uint32_t>{3, 2}, {6, 2}, {2, 6}, {2, 3, 2}, {2, 2, 2}, {2, 2, 3}, {5}}) {
    for (OpKind kind : kKinds) expect_right(grid(sizes), kind, 61, 1 << 16);
    expect_right(grid(sizes), OpKind::all_reduce, 61, 1 << 16, "bml_ring");
  }
}

// What every host has to send each way over the cut around those that share a digit of the level.
double seconds_of_cut(const topology::Topology& topology, uint64_t bytes, uint32_t level) {
  const double size = topology.grid[level];
  const double hosts_inside = topology.num_ranks() / size;
  return 2 * (size - 1) / size * static_cast<double>(bytes) * topology.rail_beta(level) /
         hosts_inside;
}

TEST(BmlSharesTest, AreEqualWhereLevelsAre) {
  for (uint32_t k = 2; k <= 4; ++k) EXPECT_TRUE(BmlShares(bcube(3, k)).are_equal()) << k;
  // As close as measurements of one rate may be.
  EXPECT_TRUE(BmlShares(at_rates(bcube(3, 2), {200'000'000, 160'000'000})).are_equal());
  EXPECT_TRUE(
      BmlShares(at_rates(bcube(2, 3), {200'000'000, 160'000'000, 200'000'000})).are_equal());
}

TEST(BmlSharesTest, GiveASlowLevelLessToMove) {
  const BmlShares slow_level(at_rates(bcube(3, 2), {200'000'000, 50'000'000}));
  EXPECT_EQ(slow_level.of(0), 1);
  EXPECT_EQ(slow_level.of(1), 0);
  const BmlShares half(at_rates(bcube(3, 2), {100'000'000, 200'000'000}));
  EXPECT_NEAR(half.of(1), 5.0 / 6, 0.01);
  const BmlShares sizes(grid({4, 2}));
  EXPECT_NEAR(sizes.of(0), 1.0 / 6, 0.01);
}

TEST(BmlSharesTest, CoverTheRangeInOrder) {
  const BmlShares shares(at_rates(bcube(2, 3), {200'000'000, 100'000'000, 100'000'000}));
  for (uint64_t count : {0, 1, 7, 119, 120, 12'345, 3'000'000}) {
    uint64_t begin = 0;
    double largest_error = 0;
    for (uint32_t t = 0; t < shares.num_streams(); ++t) {
      const Range share = shares.cut({BufferId::output, 10, count}, t, 4);
      EXPECT_EQ(share.offset, begin + 10);
      begin += share.length;
      largest_error = std::max(largest_error, std::abs(static_cast<double>(share.length) -
                                                       shares.of(t) * static_cast<double>(count)));
    }
    EXPECT_EQ(begin, count);
    EXPECT_LE(largest_error, 120 * 16);
  }
}

TEST(BmlTest, IsRightWhereRatesDiffer) {
  for (const std::vector<uint32_t>& sizes :
       {std::vector<uint32_t>{3, 3}, {2, 4}, {2, 2, 2}, {2, 3, 2}}) {
    std::vector<uint64_t> rates{100'000'000, 300'000'000, 20'000'000};
    rates.resize(sizes.size());
    const topology::Topology topology = at_rates(grid(sizes), rates);
    ASSERT_FALSE(BmlShares(topology).are_equal());
    for (OpKind kind : kKinds) {
      for (uint64_t count : {0, 1, 7, 301}) expect_right(topology, kind, count);
      expect_right(topology, kind, 61, 1 << 16);
    }
    expect_right(topology, OpKind::all_reduce, 301, 1 << 16, "bml_ring");
  }
}

// No algorithm sends less over the cuts between the parts of a level.
TEST(BmlTest, IsCloseToTheBoundOfTheSlowestLevel) {
  constexpr uint64_t kBytes = 12'500'000;
  struct Case {
    std::vector<uint32_t> sizes;
    std::vector<uint64_t> rates;
  };
  for (const auto& [sizes, rates] :
       {Case{{3, 3}, {200'000'000, 50'000'000}}, Case{{3, 3}, {50'000'000, 200'000'000}},
        Case{{4, 4}, {200'000'000, 50'000'000}},
        Case{{2, 2, 2}, {200'000'000, 200'000'000, 50'000'000}}}) {
    const topology::Topology topology = at_rates(grid(sizes), rates);
    double bound = 0;
    for (uint32_t level = 0; level < sizes.size(); ++level) {
      bound = std::max(bound, seconds_of_cut(topology, kBytes, level));
    }
    const auto shapes = even_shapes(OpKind::all_reduce, topology.num_ranks(), 0, kBytes);
    const auto schedules = schedules_of(topology, OpKind::all_reduce, shapes, "bml_ring");
    const double closed =
        find_algorithm(OpKind::all_reduce, "bml_ring")->estimate(estimate_terms(topology, kBytes));
    EXPECT_LT(simulate(topology, schedules, 1), 1.15 * bound);
    EXPECT_NEAR(closed, bound, 0.03 * bound);
  }
}

TEST(BmlTest, IsRightForHostsInAnyOrderOfRanks) {
  topology::Topology topology = grid({3, 2});
  topology.host_of_rank = {4, 2, 0, 5, 1, 3};
  for (OpKind kind : kKinds) expect_right(topology, kind, 50);
}

// The bytes a rank sends on each rail; `count` elements divide evenly.
std::map<uint8_t, uint64_t> sent_on_rails(const Schedule& schedule) {
  std::map<uint8_t, uint64_t> sent;
  for (const Step& step : schedule.steps) {
    if (step.kind == StepKind::send) sent[step.rail] += step.range.length;
  }
  return sent;
}

TEST(BmlTest, EveryRailCarriesTheSame) {
  // BCube(3, 2): 16 T_C in all, where T_C moves one of 18 pieces.
  const auto shapes = even_shapes(OpKind::all_reduce, 9, 0, 18 * 100);
  for (const Schedule& schedule : schedules_of(bcube(3, 2), OpKind::all_reduce, shapes)) {
    EXPECT_EQ(sent_on_rails(schedule), (std::map<uint8_t, uint64_t>{{0, 1600}, {1, 1600}}));
  }
}

TEST(BmlTest, SmallVectorsTakeOneMessagePerNeighbourAndStep) {
  const auto shapes = even_shapes(OpKind::all_reduce, 9, 0, 1800);
  const Schedule schedule = schedules_of(bcube(3, 2), OpKind::all_reduce, shapes)[4];
  EXPECT_EQ(std::count_if(schedule.steps.begin(), schedule.steps.end(),
                          [](const Step& step) { return step.kind == StepKind::send; }),
            2 * 2 * 2 * 2);  // stages, streams, steps, neighbours
}

TEST(BmlTest, TakesTheTimeOfThePaper) {
  constexpr uint64_t kBytes = 12'500'000;
  const double all_once = kBytes * 8 / 200e6;
  const Algorithm& bml = *find_algorithm(OpKind::all_reduce, "bml");
  for (const auto& [n, k] : std::vector<std::pair<uint32_t, uint32_t>>{{3, 2}, {2, 3}, {4, 2}}) {
    topology::Topology topology = bcube(n, k);
    topology.contention = 1;  // the paper knows none
    const double num_hosts = topology.num_ranks();
    const double bound = 2 * (num_hosts - 1) / (k * num_hosts) * all_once;
    const auto shapes = even_shapes(OpKind::all_reduce, topology.num_ranks(), 0, kBytes);
    const auto schedules = schedules_of(topology, OpKind::all_reduce, shapes);
    EXPECT_NEAR(simulate(topology, schedules, 1), bound, 0.02 * bound) << n << ", " << k;
    EXPECT_NEAR(simulate_in_lockstep(topology, schedules[1], 1, 1), bound, 0.02 * bound);
    EXPECT_NEAR(bml.estimate(estimate_terms(topology, kBytes)), bound, 0.02 * bound);
  }
}

TEST(BmlTest, RingsInTheLevelsTakeTheSameTimeAndNoContention) {
  constexpr uint64_t kBytes = 12'500'000;
  const Algorithm& ring = *find_algorithm(OpKind::all_reduce, "bml_ring");
  for (const auto& [n, k] : std::vector<std::pair<uint32_t, uint32_t>>{{3, 2}, {2, 3}, {4, 2}}) {
    const topology::Topology topology = bcube(n, k);
    const double num_hosts = topology.num_ranks();
    const double bound = 2 * (num_hosts - 1) / (k * num_hosts) * kBytes * 8 / 200e6;
    std::vector<Schedule> schedules;
    for (const OpShape& shape : even_shapes(OpKind::all_reduce, topology.num_ranks(), 0, kBytes)) {
      schedules.push_back(ring.generate(shape, topology));
    }
    EXPECT_NEAR(simulate(topology, schedules, 1), bound, 0.02 * bound) << n << ", " << k;
    EXPECT_NEAR(ring.estimate(estimate_terms(topology, kBytes)), bound, 0.02 * bound);
  }
}

// Every message waits 2 ms, and the rails are busy meanwhile: with what came before the last chunk,
// each step begins while the one before ends. Only at the beginning and the end nothing else moves.
TEST(BmlTest, StepsOverlapSoThatLatencyIsNotPaidInEveryOne) {
  constexpr uint64_t kBytes = 12'500'000;
  for (const auto& [n, k] : std::vector<std::pair<uint32_t, uint32_t>>{{3, 2}, {2, 3}, {4, 2}}) {
    topology::Topology topology = bcube(n, k);
    topology.contention = 1;
    topology.inter_host.alpha_s = 2e-3;
    const double num_hosts = topology.num_ranks();
    const double bound = 2 * (num_hosts - 1) / (k * num_hosts) * kBytes * 8 / 200e6;
    for (const char* name : {"bml", "bml_ring"}) {
      const auto shapes = even_shapes(OpKind::all_reduce, topology.num_ranks(), 0, kBytes);
      const auto schedules = schedules_of(topology, OpKind::all_reduce, shapes, name);
      EXPECT_LT(simulate(topology, schedules, 1), 1.008 * bound) << name << " " << n << ", " << k;
    }
  }
}

TEST(BmlTest, ClosedFormsAgreeWithTheSimulation) {
  for (const std::vector<uint32_t>& sizes :
       {std::vector<uint32_t>{3, 2}, {4, 4}, {2, 2, 2}, {5}, {2, 3, 4}}) {
    const topology::Topology topology = grid(sizes);
    for (OpKind kind : kKinds) {
      for (uint64_t bytes : {uint64_t{2400}, uint64_t{4'800'000}}) {
        const uint64_t count = kind == OpKind::all_reduce ? bytes : bytes / topology.num_ranks();
        const auto shapes = even_shapes(kind, topology.num_ranks(), 0, count);
        const double simulation = simulate(topology, schedules_of(topology, kind, shapes), 1);
        const double closed = find_algorithm(kind, "bml")
                                  ->estimate(estimate_terms(topology, static_cast<double>(bytes)));
        // Small messages are posted while others are under way, which the closed forms leave out.
        EXPECT_GT(closed, 0.8 * simulation) << to_string(kind) << ", " << bytes;
        EXPECT_LT(closed, (bytes < 10'000 ? 1.6 : 1.1) * simulation)
            << to_string(kind) << ", " << bytes;
      }
    }
  }
}

// The other algorithms on a grid: what is relayed loads the links of those who relay.
TEST(GridCostTest, ClosedFormsOfFlatAlgorithmsStayCloseToTheSimulation) {
  for (const std::vector<uint32_t>& sizes : {std::vector<uint32_t>{4, 2}, {2, 2, 2}, {4, 4}}) {
    const topology::Topology topology = grid(sizes);
    for (const char* name : {"direct", "ring", "recursive_doubling", "halving_doubling"}) {
      const Algorithm& algorithm = *find_algorithm(OpKind::all_reduce, name);
      std::vector<Schedule> schedules;
      for (const OpShape& shape :
           even_shapes(OpKind::all_reduce, topology.num_ranks(), 0, 1'600'000)) {
        schedules.push_back(algorithm.generate(shape, topology));
      }
      const double simulation = simulate(topology, schedules, 1);
      EXPECT_NEAR(algorithm.estimate(estimate_terms(topology, 1'600'000)), simulation,
                  0.25 * simulation)
          << name << " on " << sizes.size() << " levels";
    }
  }
}

TEST(BmlTest, IsPlannedForLargeVectorsOnly) {
  for (const topology::Topology& topology : {bcube(3, 2), bcube(2, 3), bcube(4, 2)}) {
    Planner planner(topology, "");
    const uint32_t num_ranks = topology.num_ranks();
    for (OpKind kind : kKinds) {
      const uint64_t large = kind == OpKind::all_reduce ? 12'500'000 : 12'500'000 / num_ranks;
      const std::string chosen = planner.choose(even_shapes(kind, num_ranks, 0, large)[0]).name;
      EXPECT_TRUE(chosen.starts_with("bml")) << chosen;
    }
    const std::string small =
        planner.choose(even_shapes(OpKind::all_reduce, num_ranks, 0, 8)[0]).name;
    EXPECT_FALSE(small.starts_with("bml")) << small;
  }
}

TEST(BmlTest, IsRefusedWhereItDoesNotApply) {
  const Planner flat(topology::flat_network({0, 1, 2, 3}, 2, 1e9, true), "all_reduce=bml");
  EXPECT_EQ(flat.status().code(), StatusCode::invalid_argument);
  EXPECT_NE(flat.status().message().find("all_reduce=bml needs one rank per host of a grid"),
            std::string::npos)
      << flat.status();
  EXPECT_NE(flat.status().message().find("legal are all_reduce: direct, ring, recursive_doubling"),
            std::string::npos);
  EXPECT_FALSE(Planner(topology::single_host(4, true), "bml").status().ok());
  EXPECT_TRUE(Planner(bcube(2, 2), "bml").status().ok());
  EXPECT_TRUE(parse_overrides("all_reduce=bml").ok());
}

// BCube(16, 4) has 65,536 hosts: from the schedule of one.
TEST(BmlTest, IsPricedOnClustersThatAreTooLargeToGenerate) {
  topology::Topology topology = bcube(16, 4);
  topology.contention = 1;
  OpShape shape;
  shape.num_ranks = topology.num_ranks();
  shape.rank = 4711;
  shape.counts = {uint64_t{1} << 30};
  const Schedule schedule = find_algorithm(OpKind::all_reduce, "bml")->generate(shape, topology);
  const double num_hosts = topology.num_ranks();
  const double bound = 2 * (num_hosts - 1) / (4 * num_hosts) * (uint64_t{1} << 30) * 8 / 200e6;
  EXPECT_NEAR(simulate_in_lockstep(topology, schedule, shape.rank, 1), bound, 0.02 * bound);
}

}  // namespace
}  // namespace dmlcomm::schedule
