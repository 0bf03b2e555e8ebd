// The planner: the same choice on every rank, overrides, and the cache.
#include "schedule/planner.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "tests/schedule_shapes.h"
#include "tests/schedule_topologies.h"

namespace dmlcomm::schedule {
namespace {

constexpr uint64_t kMiB = 1 << 20;

topology::Topology network(uint32_t num_ranks) {
  std::vector<uint32_t> hosts(num_ranks);
  std::iota(hosts.begin(), hosts.end(), 0u);
  return topology::flat_network(hosts, 1, 10e9, true);
}

std::string choice(Planner* planner, OpKind kind, uint32_t num_ranks, uint64_t bytes) {
  const bool has_pieces = kind == OpKind::all_gather || kind == OpKind::reduce_scatter;
  auto shape = even_shapes(kind, num_ranks, 0, has_pieces ? bytes / num_ranks : bytes)[0];
  return planner->choose(shape).name;
}

void expect_refused(const std::string& text, const std::string& reason) {
  Planner planner(topology::single_host(2, true), text);
  EXPECT_EQ(planner.status().code(), StatusCode::invalid_argument);
  const std::string& message = planner.status().message();
  EXPECT_NE(message.find(reason), std::string::npos) << message;
  EXPECT_NE(message.find("all_reduce: direct, ring"), std::string::npos) << message;
  auto planned = planner.plan(even_shapes(OpKind::barrier, 2, 0, 0)[0]);
  EXPECT_EQ(planned.status().message(), message);
}

TEST(PlannerTest, ChoosesFewRoundsForSmallAndFewBytesForLarge) {
  for (const topology::Topology& topology :
       {topology::single_host(8, true), topology::single_host(8, false)}) {
    Planner planner(topology, "");
    EXPECT_EQ(choice(&planner, OpKind::all_reduce, 8, 64), "recursive_doubling");
    EXPECT_EQ(choice(&planner, OpKind::all_reduce, 8, 64 * kMiB), "direct");
    EXPECT_EQ(choice(&planner, OpKind::reduce_scatter, 8, 64 * kMiB), "direct");
    EXPECT_EQ(choice(&planner, OpKind::all_gather, 8, 64 * kMiB), "direct");
  }
}

TEST(PlannerTest, KeepsSchedulesWithABarrierBesideThemApart) {
  Planner planner(network(4), "");
  const OpShape shape = even_shapes(OpKind::broadcast, 4, 0, kMiB)[0];
  const Algorithm& algorithm = planner.choose(shape);
  const auto alone = planner.schedule_of(shape, algorithm);
  const auto joining = planner.schedule_of(shape, algorithm, {.barrier = true});
  EXPECT_EQ(joining->num_streams, alone->num_streams + 1);
  EXPECT_EQ(joining->steps.size(), alone->steps.size() + 4);
  EXPECT_EQ(planner.schedule_of(shape, algorithm), alone);
  EXPECT_EQ(planner.schedule_of(shape, algorithm, {.barrier = true}), joining);
}

TEST(PlannerTest, GoesThroughLeadersWhereRanksShareCoresOfLoopback) {
  for (uint32_t per_core : {2u, 4u}) {
    Planner planner(loopback_on_cores(8, per_core), "");
    EXPECT_EQ(choice(&planner, OpKind::all_reduce, 8, 64), "recursive_doubling");
    EXPECT_EQ(choice(&planner, OpKind::all_reduce, 8, kMiB / 4), "leaders");
    EXPECT_EQ(choice(&planner, OpKind::all_reduce, 8, 64 * kMiB), "leaders");
  }
}

TEST(PlannerTest, PrefersTheRingWhereConnectionsMeetAtASwitch) {
  Planner planner(network(8), "");
  EXPECT_EQ(choice(&planner, OpKind::all_reduce, 8, 64), "recursive_doubling");
  for (OpKind kind : {OpKind::all_reduce, OpKind::reduce_scatter, OpKind::all_gather}) {
    EXPECT_EQ(choice(&planner, kind, 8, 64 * kMiB), "ring");
  }
  Planner pair(network(2), "");
  EXPECT_EQ(choice(&pair, OpKind::all_reduce, 2, 64 * kMiB), "direct");
}

TEST(PlannerTest, BroadcastsFromTheRootAloneOnlyWhereSendingIsFree) {
  Planner memory(topology::single_host(8, true), "");
  EXPECT_EQ(choice(&memory, OpKind::broadcast, 8, 64 * kMiB), "direct");
  Planner tcp(network(8), "");
  EXPECT_EQ(choice(&tcp, OpKind::broadcast, 8, 64 * kMiB), "chain");
}

// Several ranks of a host share its NIC. In stages its bytes pass there once for the whole host; a
// ring crosses it once per host, and needs no two hosts to be alike.
TEST(PlannerTest, CrossesTheNicThatRanksShareAsRarelyAsItCan) {
  Planner alike(topology::flat_network({0, 0, 0, 0, 1, 1, 1, 1}, 1, 10e9, true), "");
  for (OpKind kind : {OpKind::all_reduce, OpKind::reduce_scatter, OpKind::all_gather}) {
    EXPECT_EQ(choice(&alike, kind, 8, 64 * kMiB), "hierarchical");
  }
  Planner uneven(topology::flat_network({0, 0, 0, 0, 0, 1, 1, 1}, 1, 10e9, true), "");
  EXPECT_EQ(choice(&uneven, OpKind::all_reduce, 8, 64 * kMiB), "ring");
}

// 9 hosts on 2 cores: an all_reduce takes 16 messages as a tree, 26 by recursive doubling, and 144
// with a ring, directly or with BML. From where bytes count more, nothing changes.
TEST(PlannerTest, SendsFewSmallMessagesWhereHostsShareCores) {
  constexpr uint32_t kHosts = 9;
  const auto hosts = one_rank_per_host(kHosts);
  for (const topology::Topology& network : {topology::grid_network(hosts, {3, 3}, 1e9, true),
                                            topology::flat_network(hosts, 1, 1e9, true)}) {
    Planner apart(network, ""), together(topology::on_shared_cores(network, 4.5), "");
    EXPECT_EQ(choice(&together, OpKind::all_reduce, kHosts, 65536), "recursive_doubling");
    EXPECT_NE(choice(&apart, OpKind::all_reduce, kHosts, 65536), "recursive_doubling");
    EXPECT_EQ(choice(&together, OpKind::all_gather, kHosts, 1152), "bruck");
    const std::string large = network.grid.empty() ? "ring" : "bml_ring";
    for (uint64_t bytes : {12'500'000u, 100'000'000u}) {
      EXPECT_EQ(choice(&apart, OpKind::all_reduce, kHosts, bytes), large);
      EXPECT_EQ(choice(&together, OpKind::all_reduce, kHosts, bytes), large);
    }
  }
}

// 64 KiB on 9 hosts on 2 cores: without a rate worth mentioning messages count, at 200 Mb/s bytes.
TEST(PlannerTest, SendsFewBytesOverSlowLinksAndFewMessagesOverFastOnes) {
  const auto of_rate = [](uint64_t bits_per_second) {
    topology::Topology grid = topology::grid_network(one_rank_per_host(9), {3, 3}, 1e9, true);
    grid = topology::at_rates(grid, {bits_per_second, bits_per_second});
    return topology::on_shared_cores(grid, 4.5);
  };
  Planner fast(of_rate(10'000'000'000), ""), slow(of_rate(200'000'000), "");
  EXPECT_EQ(choice(&fast, OpKind::all_reduce, 9, 65536), "tree");
  EXPECT_EQ(choice(&slow, OpKind::all_reduce, 9, 65536), "bml");
  EXPECT_EQ(choice(&slow, OpKind::all_reduce, 9, 1'000'000), "bml_ring");
}

TEST(PlannerTest, ChoosesAsEverWhereEveryRankHasACore) {
  const topology::Topology network = topology::flat_network(one_rank_per_host(9), 1, 1e9, true);
  Planner apart(network, ""), together(topology::on_shared_cores(network, 1), "");
  for (OpKind kind : {OpKind::all_reduce, OpKind::reduce, OpKind::broadcast, OpKind::all_gather,
                      OpKind::reduce_scatter}) {
    for (uint64_t bytes = 9; bytes < 256 * kMiB; bytes *= 2) {
      EXPECT_EQ(choice(&together, kind, 9, bytes), choice(&apart, kind, 9, bytes)) << bytes;
    }
  }
}

TEST(PlannerTest, ChoosesTheSameOnEveryRankAndForEveryRoot) {
  Planner planner(network(5), "");
  for (const char* name : {"tree", "direct", "scatter_allgather", "chain"}) {
    Planner forced(network(5), std::string("broadcast=") + name);
    for (uint32_t root = 0; root < 5; ++root) {
      for (const OpShape& shape : even_shapes(OpKind::broadcast, 5, root, 4000)) {
        EXPECT_STREQ(forced.choose(shape).name, name);
        EXPECT_EQ(&planner.choose(shape),
                  &planner.choose(even_shapes(OpKind::broadcast, 5, 0, 4000)[0]));
      }
    }
  }
}

TEST(PlannerTest, OneNameOverridesEveryOperationThatHasIt) {
  Planner planner(topology::single_host(4, true), "ring");
  ASSERT_TRUE(planner.status().ok()) << planner.status();
  EXPECT_EQ(choice(&planner, OpKind::all_reduce, 4, 64), "ring");
  EXPECT_EQ(choice(&planner, OpKind::all_gather, 4, 64), "ring");
  EXPECT_EQ(choice(&planner, OpKind::barrier, 4, 0), "dissemination");
}

TEST(PlannerTest, AListOverridesSingleOperations) {
  Planner planner(topology::single_host(4, true), "all_reduce=tree,broadcast=chain");
  ASSERT_TRUE(planner.status().ok()) << planner.status();
  EXPECT_EQ(choice(&planner, OpKind::all_reduce, 4, 64 * kMiB), "tree");
  EXPECT_EQ(choice(&planner, OpKind::broadcast, 4, 64), "chain");
  EXPECT_EQ(choice(&planner, OpKind::all_gather, 4, 64 * kMiB), "direct");
}

TEST(PlannerTest, TriesNothingWhereTheUserHasChosen) {
  const OpShape all_reduce = even_shapes(OpKind::all_reduce, 4, 0, kMiB)[0];
  const OpShape broadcast = even_shapes(OpKind::broadcast, 4, 0, kMiB)[0];
  Planner named(network(4), "all_reduce=tree");
  EXPECT_EQ(named.trials_of(all_reduce), nullptr);
  EXPECT_NE(named.trials_of(broadcast), nullptr);
  Planner planned(network(4), "", "all_reduce:0=direct");
  EXPECT_EQ(planned.trials_of(all_reduce), nullptr);
  EXPECT_NE(planned.trials_of(broadcast), nullptr);
}

TEST(PlannerTest, AWrongOverrideNamesTheLegalOnes) {
  expect_refused("rings", "no operation has an algorithm \"rings\"");
  expect_refused("all_reduce=chain", "all_reduce has no algorithm \"chain\"");
  expect_refused("allreduce=ring", "there is no operation \"allreduce\"");
  expect_refused("all_reduce=ring,tree", "\"tree\" is not of the form operation=name");
  expect_refused("send=direct", "send has no algorithm \"direct\"");
  expect_refused("all_reduce=ps", "all_reduce has no algorithm \"ps\"");
  expect_refused("all_reduce=slots", "needs ranks that share one host's memory");
}

TEST(PlannerTest, APlanChoosesBySizeWhereNoOverrideDoes) {
  const std::string plan = "all_reduce:0=tree,all_reduce:1000=ring,broadcast:0=chain";
  Planner planner(network(4), "broadcast=direct", plan);
  ASSERT_TRUE(planner.status().ok()) << planner.status();
  EXPECT_EQ(choice(&planner, OpKind::all_reduce, 4, 0), "tree");
  EXPECT_EQ(choice(&planner, OpKind::all_reduce, 4, 999), "tree");
  EXPECT_EQ(choice(&planner, OpKind::all_reduce, 4, 1000), "ring");
  EXPECT_EQ(choice(&planner, OpKind::broadcast, 4, 1000), "direct");
}

TEST(PlannerTest, AWrongPlanSaysWhatIsWrong) {
  const auto message = [](const std::string& plan) {
    return std::string(Planner(network(4), "", plan).status().message());
  };
  for (const char* plan : {"all_reduce:5=ring", "all_reduce:0=ring,all_reduce:0=tree",
                           "barrier:0=dissemination,barrier:5=dissemination"}) {
    EXPECT_NE(message(plan).find("sizes ascend from 0"), std::string::npos) << message(plan);
  }
  EXPECT_NE(message("all_reduce=ring").find("not of the form"), std::string::npos);
  EXPECT_NE(message("all_reduce:1k=ring").find("no number of bytes"), std::string::npos);
  EXPECT_NE(message("all_reduce:0=rings").find("no algorithm \"rings\""), std::string::npos);
  EXPECT_NE(message("all_reduce:0=bml").find("needs one rank per host"), std::string::npos);
}

topology::Topology sharing_memory(uint32_t num_ranks, uint64_t slot_bytes, bool reaches_peers,
                                  bool shares_tensors) {
  topology::Topology topology = topology::single_host(num_ranks, true);
  topology.memory.exists = true;
  topology.memory.slot_bytes = slot_bytes;
  topology.memory.reaches_peers = reaches_peers;
  if (shares_tensors) {
    topology.memory.least_mapped_bytes = 64 * 1024;
    topology.memory.most_mapped_bytes = slot_bytes - 64;
  }
  return topology;
}

// What small operations gain was measured at the borders of these rules.
std::string expected_in_memory(const topology::SharedMemory& memory, const OpShape& shape) {
  const uint64_t others = shape.num_ranks - 1;
  const uint64_t most = memory.reaches_peers ? 16 * 1024 * others : UINT64_MAX;
  const uint64_t bytes = known_bytes(shape);
  bool fits = bytes <= std::min(most, memory.slot_bytes);
  if (shape.kind == OpKind::all_reduce || shape.kind == OpKind::reduce_scatter) {
    fits = bytes <= memory.slot_bytes && bytes / shape.num_ranks <= most;
  } else if (shape.kind == OpKind::all_gather) {
    fits = shape.counts[0] * shape.element_bytes <= std::min(most, memory.slot_bytes);
  } else if (!all_ranks_know_counts(shape.kind)) {
    fits = shape.kind == OpKind::barrier;
  }
  const bool is_mapped = shape.kind == OpKind::all_reduce && bytes >= memory.least_mapped_bytes &&
                         bytes <= memory.most_mapped_bytes;
  if (memory.reaches_peers && (!fits || is_mapped)) return "peer_memory";
  return fits ? "slots" : "a schedule";
}

TEST(PlannerTest, ThroughSharedMemoryThresholdsDecideToTheByte) {
  for (uint32_t num_ranks : {2u, 3u, 4u, 7u, 16u}) {
    for (const bool reaches : {false, true}) {
      for (const bool shares : {false, true}) {
        const auto topology = sharing_memory(num_ranks, kMiB, reaches, shares);
        Planner planner(topology, "");
        for (OpKind kind : {OpKind::all_reduce, OpKind::reduce, OpKind::broadcast,
                            OpKind::all_gather, OpKind::gather, OpKind::scatter,
                            OpKind::reduce_scatter, OpKind::all_to_all, OpKind::barrier}) {
          for (uint64_t size = 1; size <= 4 * kMiB; size *= 2) {
            for (uint64_t count : {size - 1, size, size + 1, size * 3 / 2, size * num_ranks}) {
              const OpShape shape = even_shapes(kind, num_ranks, 0, count)[0];
              const Algorithm& chosen = planner.choose(shape);
              EXPECT_EQ(chosen.is_schedule() ? "a schedule" : chosen.name,
                        expected_in_memory(topology.memory, shape))
                  << to_string(kind) << " of " << count << ", N = " << num_ranks;
            }
          }
        }
      }
    }
  }
}

TEST(PlannerTest, ANamedWayThroughMemoryIsTakenWhereItCanCarryTheShape) {
  Planner slots(sharing_memory(4, kMiB, true, true), "slots");
  ASSERT_TRUE(slots.status().ok()) << slots.status();
  EXPECT_EQ(choice(&slots, OpKind::all_reduce, 4, kMiB), "slots");
  EXPECT_EQ(choice(&slots, OpKind::all_reduce, 4, kMiB + 1), "peer_memory");
  EXPECT_EQ(choice(&slots, OpKind::gather, 4, 8), "peer_memory");
  Planner peers(sharing_memory(4, kMiB, true, false), "all_reduce=peer_memory");
  EXPECT_EQ(choice(&peers, OpKind::all_reduce, 4, 4), "peer_memory");
  EXPECT_EQ(choice(&peers, OpKind::reduce, 4, 4), "slots");
  Planner plan(sharing_memory(4, kMiB, true, true), "", "all_reduce:0=ring,all_reduce:64=slots");
  EXPECT_EQ(choice(&plan, OpKind::all_reduce, 4, 63), "ring");
  EXPECT_EQ(choice(&plan, OpKind::all_reduce, 4, 64), "slots");
  EXPECT_EQ(choice(&plan, OpKind::broadcast, 4, 64), "slots");
}

TEST(PlannerTest, ANameThatTurnsOutNotToApplyIsAnError) {
  Planner planner(sharing_memory(4, kMiB, true, true), "all_reduce=peer_memory");
  ASSERT_TRUE(planner.status().ok()) << planner.status();
  planner.share_memory(sharing_memory(4, kMiB, false, false).memory);
  EXPECT_EQ(planner.status().code(), StatusCode::invalid_argument);
  Planner any(sharing_memory(4, kMiB, true, true), "");
  EXPECT_EQ(choice(&any, OpKind::all_reduce, 4, kMiB), "peer_memory");
  any.share_memory(sharing_memory(4, kMiB, false, false).memory);
  EXPECT_EQ(choice(&any, OpKind::all_reduce, 4, kMiB), "slots");
}

TEST(PlannerTest, RefusesMalformedShapes) {
  Planner planner(topology::single_host(4, true), "");
  auto shape = even_shapes(OpKind::all_gather, 4, 0, 3)[1];
  shape.counts.pop_back();
  EXPECT_EQ(planner.plan(shape).status().code(), StatusCode::invalid_argument);
  EXPECT_EQ(planner.plan(even_shapes(OpKind::all_gather, 3, 0, 3)[1]).status().message(),
            "all_gather: the shape has 3 ranks, the topology 4");
  shape = even_shapes(OpKind::broadcast, 4, 0, 3)[1];
  shape.root = 4;
  EXPECT_EQ(planner.plan(shape).status().code(), StatusCode::invalid_argument);
  shape.kind = OpKind::send;
  EXPECT_EQ(planner.plan(shape).status().code(), StatusCode::invalid_argument);
}

TEST(PlannerTest, KeepsSchedulesAndForgetsTheLeastRecentlyUsed) {
  Planner planner(topology::single_host(4, true), "");
  const auto shape_of = [](uint64_t count) {
    return even_shapes(OpKind::all_reduce, 4, 0, count)[2];
  };
  const auto plan = [&](uint64_t count) { return *planner.plan(shape_of(count)); };
  const auto first = plan(0), second = plan(1);
  EXPECT_EQ(first, plan(0));
  for (uint64_t count = 2; count < 257; ++count) plan(count);  // 257 shapes; 1 is the oldest
  EXPECT_EQ(first, plan(0));
  EXPECT_NE(second, plan(1));
  EXPECT_EQ(name_of(*second), "all_reduce_recursive_doubling");  // still the caller's
}

// Schedules in blocks have many steps: few of them are kept.
TEST(PlannerTest, ForgetsLongSchedulesSooner) {
  Planner planner(topology::single_host(4, false), "all_reduce=direct");
  const auto plan = [&](uint64_t bytes) {
    return *planner.plan(even_shapes(OpKind::all_reduce, 4, 0, bytes)[1]);
  };
  const std::weak_ptr<const Schedule> first = plan(500 * kMiB);
  for (uint64_t i = 1; i < 4; ++i) plan(500 * kMiB + i);
  EXPECT_FALSE(first.expired());
  for (uint64_t i = 4; i < 16; ++i) plan(500 * kMiB + i);
  EXPECT_TRUE(first.expired());
}

}  // namespace
}  // namespace dmlcomm::schedule
