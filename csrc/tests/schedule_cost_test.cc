// The simulation against arithmetic, and the closed forms beside the
// generators against the simulation.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "base/str_cat.h"
#include "schedule/algorithms.h"
#include "schedule/price/max_min_sharing.h"
#include "schedule/price/simulator.h"
#include "schedule/verify/verifier.h"
#include "tests/schedule_shapes.h"
#include "tests/schedule_topologies.h"

namespace dmlcomm::schedule {
namespace {

// Round prices, so that the expected times can be read off.
topology::Topology round_prices(uint32_t num_ranks, bool single_copy) {
  topology::Topology topology = topology::single_host(num_ranks, single_copy);
  topology.intra_host = topology.inter_host = {1e-3, 1e-4, 1e-6};
  topology.gamma_s_per_byte = 1e-7;
  return topology;
}

bool has_pieces(OpKind kind) {
  return kind != OpKind::all_reduce && kind != OpKind::reduce && kind != OpKind::broadcast;
}

// All ranks' schedules for `bytes` in all, of one-byte elements.
std::vector<Schedule> schedules_of(const Algorithm& algorithm, const topology::Topology& topology,
                                   uint64_t bytes) {
  const uint32_t num_ranks = topology.num_ranks();
  const uint64_t count = has_pieces(algorithm.kind) ? bytes / num_ranks : bytes;
  std::vector<Schedule> schedules;
  for (const OpShape& shape : even_shapes(algorithm.kind, num_ranks, 0, count)) {
    schedules.push_back(algorithm.generate(shape, topology));
  }
  return schedules;
}

double simulated(OpKind kind, const std::string& name, const topology::Topology& topology,
                 uint64_t bytes) {
  return simulate(topology, schedules_of(*find_algorithm(kind, name), topology, bytes), 1);
}

TEST(MaxMinSharingTest, GivesWhatABottleneckLeavesToTheOthers) {
  MaxMinSharing sharing;
  const uint32_t narrow = sharing.add_resource(2), wide = sharing.add_resource(10);
  sharing.add(7, 1, {{narrow}, {wide}});
  sharing.add(8, 1, {{narrow}});
  sharing.add(9, 18, {{wide}});  // gets 10 - 1, then 10
  EXPECT_DOUBLE_EQ(sharing.seconds_to_first_end(), 1);
  EXPECT_EQ(sharing.advance(1), (std::vector<uint32_t>{7, 8}));
  EXPECT_DOUBLE_EQ(sharing.seconds_to_first_end(), 0.9);
  EXPECT_EQ(sharing.advance(0.9), std::vector<uint32_t>{9});
  EXPECT_EQ(sharing.num_flows(), 0u);
  EXPECT_EQ(sharing.seconds_to_first_end(), std::numeric_limits<double>::infinity());
}

TEST(SimulationTest, OneMessageCostsAlphaOverheadAndItsBytes) {
  EXPECT_NEAR(simulated(OpKind::broadcast, "direct", round_prices(2, false), 1000), 2.1e-3, 1e-9);
}

TEST(SimulationTest, MessagesOfOneSenderShareItUnlessSendingIsFree) {
  // Posted after 0.1, 0.2 and 0.3 ms, moving 1 ms later; 3,000 bytes share the sender from then on.
  EXPECT_NEAR(simulated(OpKind::broadcast, "direct", round_prices(4, false), 1000), 1.1e-3 + 3e-3,
              1e-9);
  EXPECT_NEAR(simulated(OpKind::broadcast, "direct", round_prices(4, true), 1000), 1.3e-3 + 1e-3,
              1e-9);
}

TEST(SimulationTest, RanksOfAHostShareItsNics) {
  topology::Topology topology = round_prices(4, true);
  topology.host_of_rank = {0, 0, 1, 1};
  // Rank r sends 1,000 bytes to each other: 4 x 1,000 bytes leave each host, 1,000 stay per rank.
  const double one_rail = simulated(OpKind::all_gather, "direct", topology, 4000);
  EXPECT_NEAR(one_rail, 1.1e-3 + 4e-3, 3e-4);
  topology.num_rails = 2;
  EXPECT_NEAR(simulated(OpKind::all_gather, "direct", topology, 4000), 1.1e-3 + 2e-3, 3e-4);
}

// 4 ranks post 3 messages each, on 2 cores: 6 times 0.1 ms. The 3 of one sender have a core.
TEST(SimulationTest, RanksThatShareCoresWaitForEachOthersMessages) {
  topology::Topology topology = round_prices(4, true);
  topology.ranks_per_core = 2;
  EXPECT_NEAR(simulated(OpKind::all_gather, "direct", topology, 4), 1.6e-3, 1e-5);
  EXPECT_NEAR(simulated(OpKind::scatter, "direct", topology, 4), 1.3e-3, 1e-5);
  const auto schedules = schedules_of(*find_algorithm(OpKind::all_gather, "direct"), topology, 4);
  EXPECT_NEAR(simulate_in_lockstep(topology, schedules[0], 0, 1), 1.6e-3, 1e-5);
}

// Posting is what takes the time. Cores go to ranks in turns, so that what a tree's next round
// needs may wait for what it does not, which no closed form knows.
TEST(ClosedFormTest, OfSharedCoresAgreesWithTheSimulation) {
  for (const Algorithm& algorithm : all_schedules()) {
    for (uint32_t num_ranks : {4u, 8u, 16u}) {
      topology::Topology topology = round_prices(num_ranks, true);
      topology.intra_host.overhead_s = 2e-3;
      topology.ranks_per_core = 4;
      if (!algorithm.applies(topology)) continue;
      const double simulation = simulate(topology, schedules_of(algorithm, topology, 336), 1);
      const double closed = algorithm.estimate(estimate_terms(topology, 336));
      const std::string what = str_cat(to_string(algorithm.kind), "_", algorithm.name,
                                       " N = ", num_ranks, ": ", closed, " against ", simulation);
      EXPECT_GT(closed, simulation * 0.75) << what;
      EXPECT_LT(closed, simulation * 1.35) << what;
    }
  }
}

// Links are so fast that only cores count: for posting, and for every byte.
TEST(ClosedFormTest, OfBytesThroughSharedCoresAgreesWithTheSimulation) {
  for (const char* name : {"direct", "ring", "recursive_doubling", "halving_doubling", "tree"}) {
    for (uint32_t num_ranks : {4u, 8u, 16u}) {
      topology::Topology topology = topology::on_shared_cores(
          topology::flat_network(one_rank_per_host(num_ranks), 1, 1e14, true), num_ranks / 2.0);
      topology.gamma_s_per_byte = 0;
      constexpr uint64_t kBytes = 33'600'000;
      const Algorithm& algorithm = *find_algorithm(OpKind::all_reduce, name);
      const double simulation = simulate(topology, schedules_of(algorithm, topology, kBytes), 1);
      const double closed = algorithm.estimate(estimate_terms(topology, kBytes));
      EXPECT_NEAR(closed, simulation, 0.35 * simulation) << name << ", N = " << num_ranks;
    }
  }
}

// Where cores count, and over loopback a byte takes one or two of them.
TEST(ClosedFormTest, OfCoresOfLoopbackAgreesWithTheSimulation) {
  for (const char* name : {"direct", "ring", "halving_doubling", "leaders"}) {
    for (uint32_t per_core : {2u, 4u, 8u}) {
      const topology::Topology topology = loopback_on_cores(8, per_core);
      constexpr uint64_t kBytes = 33'600'000;
      const Algorithm& algorithm = *find_algorithm(OpKind::all_reduce, name);
      const double simulation = simulate(topology, schedules_of(algorithm, topology, kBytes), 1);
      const double closed = algorithm.estimate(estimate_terms(topology, kBytes));
      EXPECT_NEAR(closed, simulation, 0.3 * simulation) << name << ", " << per_core << " per core";
    }
  }
}

// The closed forms are exact in powers of two, but for what overlaps at small
// sizes, and never far off.
TEST(ClosedFormTest, AgreesWithTheSimulation) {
  for (bool single_copy : {false, true}) {
    for (const Algorithm& algorithm : all_schedules()) {
      for (uint32_t num_ranks : {2u, 3u, 4u, 7u, 8u, 16u}) {
        const topology::Topology topology = round_prices(num_ranks, single_copy);
        if (!algorithm.applies(topology)) continue;
        for (uint64_t bytes : {uint64_t{336}, uint64_t{33'600'000}}) {
          const bool is_power = (num_ranks & (num_ranks - 1)) == 0;
          const double simulation = simulate(topology, schedules_of(algorithm, topology, bytes), 1);
          const double closed = algorithm.estimate(estimate_terms(topology, bytes));
          const std::string what =
              str_cat(to_string(algorithm.kind), "_", algorithm.name, " N = ", num_ranks, ", ",
                      bytes, " bytes: ", closed, " against ", simulation);
          EXPECT_GT(closed, simulation * 0.8) << what;
          EXPECT_LT(closed, simulation * (is_power ? 1.35 : 2.1)) << what;
        }
      }
    }
  }
}

TEST(ClosedFormTest, OfStagesAgreesWithTheSimulation) {
  const std::vector<uint32_t> hosts = {0, 0, 1, 1, 2, 2, 3, 3};
  for (const topology::Topology& topology :
       {topology::flat_network(hosts, 2, 1e9, true),
        topology::grid_network(hosts, {2, 2}, 1e9, true),
        topology::flat_network({0, 0, 0, 0, 1, 1, 1, 1}, 1, 1e9, false)}) {
    for (OpKind kind :
         {OpKind::all_reduce, OpKind::reduce_scatter, OpKind::all_gather, OpKind::broadcast}) {
      const Algorithm& algorithm = *find_algorithm(kind, "hierarchical");
      constexpr uint64_t kBytes = 16'000'000;
      const double simulation = simulate(topology, schedules_of(algorithm, topology, kBytes), 1);
      const double closed = algorithm.estimate(estimate_terms(topology, kBytes));
      EXPECT_NEAR(closed, simulation, 0.3 * simulation) << to_string(kind);
    }
  }
}

TEST(ClosedFormTest, RingAndDirectMoveTheLeastBytesAndDoublingTakesTheFewestRounds) {
  topology::Topology bytes_only = round_prices(8, false);
  bytes_only.intra_host = {0, 0, 1e-6};
  bytes_only.gamma_s_per_byte = 0;
  const double bound = 2 * 7.0 / 8 * 8e6 * 1e-6;
  EXPECT_NEAR(simulated(OpKind::all_reduce, "ring", bytes_only, 8'000'000), bound, 1e-6 * bound);
  EXPECT_NEAR(simulated(OpKind::all_reduce, "direct", bytes_only, 8'000'000), bound, 1e-6 * bound);
  EXPECT_NEAR(simulated(OpKind::all_reduce, "halving_doubling", bytes_only, 8'000'000), bound,
              1e-6 * bound);
  topology::Topology rounds_only = round_prices(8, false);
  rounds_only.intra_host = {1, 0, 0};
  rounds_only.gamma_s_per_byte = 0;
  EXPECT_NEAR(simulated(OpKind::all_reduce, "recursive_doubling", rounds_only, 8), 3, 1e-9);
  EXPECT_NEAR(simulated(OpKind::all_reduce, "direct", rounds_only, 8), 2, 1e-9);
  EXPECT_NEAR(simulated(OpKind::all_reduce, "ring", rounds_only, 8), 14, 1e-9);
}

TEST(LockstepTest, PricesSymmetricAlgorithmsLikeTheWholeGroup) {
  for (const auto& [kind, name] :
       std::vector<std::pair<OpKind, std::string>>{{OpKind::all_reduce, "direct"},
                                                   {OpKind::all_reduce, "ring"},
                                                   {OpKind::all_reduce, "recursive_doubling"},
                                                   {OpKind::all_reduce, "halving_doubling"},
                                                   {OpKind::all_gather, "direct"},
                                                   {OpKind::all_gather, "bruck"},
                                                   {OpKind::reduce_scatter, "ring"},
                                                   {OpKind::all_to_all, "pairwise"},
                                                   {OpKind::barrier, "dissemination"}}) {
    const topology::Topology topology = round_prices(8, false);
    const auto schedules = schedules_of(*find_algorithm(kind, name), topology, 80'000);
    const double whole = simulate(topology, schedules, 1);
    EXPECT_NEAR(simulate_in_lockstep(topology, schedules[3], 3, 1), whole, 0.04 * whole) << name;
  }
}

// Two ranks send to the first, through its NIC.
double seconds_of_two_messages(const std::vector<uint32_t>& hosts, double contention) {
  topology::Topology topology = topology::flat_network(hosts, 1, 8e9, true);
  topology.inter_host.alpha_s = topology.inter_host.overhead_s = 0;
  topology.contention = contention;
  return simulated(OpKind::gather, "direct", topology, 1'000'000);
}

TEST(SimulationTest, MessagesThatShareANicTakeLongerWhereThatContends) {
  const double alone = seconds_of_two_messages({0, 1, 2}, 1);
  EXPECT_NEAR(seconds_of_two_messages({0, 1, 2}, 1.5), 1.5 * alone, 0.01 * alone);
}

// The same two messages from one host wait for each other before the switch, not at its port.
TEST(SimulationTest, MessagesOfOneHostDoNotContend) {
  EXPECT_DOUBLE_EQ(seconds_of_two_messages({0, 1, 1}, 1.5), seconds_of_two_messages({0, 1, 1}, 1));
}

// Each NIC of BCube(2, 2) has one neighbour only, from which relayed messages come, too.
TEST(SimulationTest, MessagesOfOneNeighbourDoNotContend) {
  topology::Topology topology = topology::grid_network({0, 1, 2, 3}, {2, 2}, 1e9, true);
  const Algorithm& direct = *find_algorithm(OpKind::all_gather, "direct");
  const auto schedules = schedules_of(direct, topology, 1'000'000);
  const auto seconds = [&] {
    return std::array{simulate(topology, schedules, 1),
                      simulate_in_lockstep(topology, schedules[0], 0, 1),
                      direct.estimate(estimate_terms(topology, 1e6))};
  };
  topology.contention = 1;
  const auto alone = seconds();
  topology.contention = 1.5;
  EXPECT_EQ(seconds(), alone);
}

// Who alone sends to all others does not contend, and who receives from them does.
TEST(ClosedFormTest, OfContentionAgreesWithTheSimulation) {
  topology::Topology topology = topology::flat_network({0, 1, 2, 3, 4}, 1, 1e9, true);
  for (OpKind kind : {OpKind::scatter, OpKind::gather, OpKind::broadcast}) {
    const double closed = find_algorithm(kind, "direct")->estimate(estimate_terms(topology, 10e6));
    const double whole = simulated(kind, "direct", topology, 10'000'000);
    EXPECT_NEAR(closed, whole, 0.05 * whole) << to_string(kind);
  }
}

TEST(LockstepTest, PricesGroupsThatAreTooLargeToGenerate) {
  constexpr uint32_t kRanks = 5000;
  std::vector<uint32_t> hosts(kRanks);
  for (uint32_t rank = 0; rank < kRanks; ++rank) hosts[rank] = rank;
  const topology::Topology topology = topology::flat_network(hosts, 1, 10e9, true);
  const Algorithm& ring = *find_algorithm(OpKind::all_reduce, "ring");
  const uint64_t bytes = uint64_t{kRanks} << 14;
  const auto shape = [&] {
    OpShape one;
    one.kind = OpKind::all_reduce;
    one.num_ranks = kRanks;
    one.counts = {bytes};
    return one;
  }();
  const double expected = ring.estimate(estimate_terms(topology, static_cast<double>(bytes)));
  EXPECT_NEAR(simulate_in_lockstep(topology, ring.generate(shape, topology), 0, 1), expected,
              0.01 * expected);
}

}  // namespace
}  // namespace dmlcomm::schedule
