// Every generator, through the verifier: group sizes, counts with zeros, all
// roots, in place or not.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "base/str_cat.h"
#include "schedule/algorithms.h"
#include "schedule/joining_barrier.h"
#include "schedule/message_matching.h"
#include "schedule/probe.h"
#include "schedule/verify/verifier.h"
#include "tests/schedule_shapes.h"
#include "tests/schedule_topologies.h"

namespace dmlcomm::schedule {
namespace {

// Whether a schedule is right the plain test shows; to a sanitizer large groups show nothing more.
#if defined(__SANITIZE_ADDRESS__)
constexpr uint32_t kMostRanks = 9;
#else
constexpr uint32_t kMostRanks = 17;
#endif

// What messages bring to each rank: of which ranks it has heard at the end.
std::vector<std::set<uint32_t>> heard_of(const std::vector<Schedule>& schedules) {
  const Matches matches = *match_messages(schedules);
  std::vector<std::vector<std::set<uint32_t>>> after(schedules.size());
  std::vector<std::set<uint32_t>> at_end(schedules.size());
  for (uint32_t rank = 0; rank < schedules.size(); ++rank) {
    after[rank].resize(schedules[rank].steps.size(), {rank});
    at_end[rank] = {rank};
  }
  for (bool changed = true; changed;) {
    changed = false;
    for (uint32_t rank = 0; rank < schedules.size(); ++rank) {
      for (size_t id = 0; id < after[rank].size(); ++id) {
        const Step& step = schedules[rank].steps[id];
        std::set<uint32_t>& set = after[rank][id];
        const size_t before = set.size();
        for (uint32_t dep : step.deps) set.insert(after[rank][dep].begin(), after[rank][dep].end());
        if (id > 0 && are_in_a_run(schedules[rank].steps[id - 1], step)) {
          set.insert(after[rank][id - 1].begin(), after[rank][id - 1].end());
        }
        if (receives(step.kind)) {
          const auto& [peer, send] = matches[rank][id];
          set.insert(after[peer][send].begin(), after[peer][send].end());
        }
        at_end[rank].insert(set.begin(), set.end());
        changed |= set.size() != before;
      }
    }
  }
  return at_end;
}

class GeneratorTest : public testing::TestWithParam<Algorithm> {
 protected:
  void expect_right(const std::vector<OpShape>& shapes, const std::string& what) {
    const auto num_ranks = static_cast<uint32_t>(shapes.size());
    for (const topology::Topology& topology : topologies_of(GetParam(), num_ranks)) {
      expect_right(shapes, topology, what);
    }
  }

  static void expect_joined(const std::vector<OpShape>& shapes,
                            const topology::Topology& topology) {
    std::vector<Schedule> schedules;
    for (const OpShape& shape : shapes) {
      schedules.push_back(GetParam().generate(shape, topology));
      add_barrier(shape, topology, &schedules.back());
      EXPECT_EQ(schedules.back().num_streams, schedules.front().num_streams);
    }
    const Status status = verify(shapes, schedules);
    ASSERT_TRUE(status.ok()) << status.message() << ", N = " << shapes.size();
    for (const auto& ranks : heard_of(schedules)) EXPECT_EQ(ranks.size(), shapes.size());
  }

  // Generates all ranks' schedules, verifies them, and reports the shape where that fails.
  void expect_right(const std::vector<OpShape>& shapes, const topology::Topology& topology,
                    const std::string& what) {
    std::vector<Schedule> schedules;
    for (const OpShape& shape : shapes) schedules.push_back(GetParam().generate(shape, topology));
    EXPECT_TRUE(check_rails(topology, schedules).ok()) << check_rails(topology, schedules);
    for (Aliasing aliasing : {Aliasing::separate, Aliasing::in_place}) {
      const Status status = verify(shapes, schedules, aliasing);
      ASSERT_TRUE(status.ok()) << status.message() << "\nN = " << shapes.size() << ", " << what
                               << (aliasing == Aliasing::in_place ? ", in place" : "");
    }
    for (uint32_t rank = 0; rank < shapes.size(); ++rank) {
      EXPECT_EQ(name_of(schedules[rank]),
                str_cat(to_string(GetParam().kind), "_", GetParam().name));
      if (shapes[0].kind != OpKind::barrier) expect_no_signals(schedules[rank], what);
    }
  }

  void expect_no_signals(const Schedule& schedule, const std::string& what) {
    for (const Step& step : schedule.steps) {
      EXPECT_GT(step.range.length, 0u) << to_string(step) << ", " << what;
    }
  }
};

std::string name_of(const testing::TestParamInfo<Algorithm>& info) {
  return str_cat(to_string(info.param.kind), "_", info.param.name);
}

TEST_P(GeneratorTest, IsRightForEveryGroupSizeAndCount) {
  for (uint32_t num_ranks = 1; num_ranks <= kMostRanks; ++num_ranks) {
    for (uint64_t count :
         {0u, 1u, 2u, 3u, num_ranks - 1, num_ranks, num_ranks + 1, 40u, 97u, 200u}) {
      const uint32_t root = (count + 1) % num_ranks;
      expect_right(even_shapes(GetParam().kind, num_ranks, root, count), str_cat("count ", count));
    }
  }
}

TEST_P(GeneratorTest, IsRightForUnevenCountsWithZeros) {
  std::mt19937 random(1);
  for (uint32_t num_ranks = 1; num_ranks <= kMostRanks; ++num_ranks) {
    for (int repetition = 0; repetition < 6; ++repetition) {
      const uint32_t root = random() % num_ranks;
      expect_right(uneven_shapes(GetParam().kind, num_ranks, root, &random),
                   str_cat("root ", root, ", repetition ", repetition));
    }
  }
}

// Those that tests of this algorithm have, and with several rails, as far as it applies.
std::vector<topology::Topology> networks_of(const Algorithm& algorithm, uint32_t num_ranks) {
  std::vector<topology::Topology> networks = topologies_of(algorithm, num_ranks);
  const std::vector<uint32_t> hosts = one_rank_per_host(num_ranks);
  networks.push_back(topology::flat_network(hosts, 2, 10e9, true));
  for (const std::vector<uint32_t>& grid : grids_of(num_ranks)) {
    networks.push_back(topology::grid_network(hosts, grid, 10e9, true));
  }
  std::erase_if(networks, [&](const auto& network) { return !algorithm.applies(network); });
  return networks;
}

TEST_P(GeneratorTest, BringsWordOfAllRanksWhereThatIsPromised) {
  for (uint32_t num_ranks : {2u, 3u, 4u, 6u, 8u, 9u, 16u}) {
    if (num_ranks > kMostRanks) break;
    const bool counts_are_totals = GetParam().kind == OpKind::all_reduce;
    const uint64_t count = 64 * (counts_are_totals ? num_ranks : 1);
    const std::vector<OpShape> shapes = even_shapes(GetParam().kind, num_ranks, 0, count);
    if (!joins_all(shapes[0])) continue;
    for (const topology::Topology& topology : topologies_of(GetParam(), num_ranks)) {
      std::vector<Schedule> schedules;
      for (const OpShape& shape : shapes) schedules.push_back(GetParam().generate(shape, topology));
      for (const auto& ranks : heard_of(schedules)) EXPECT_EQ(ranks.size(), num_ranks);
    }
  }
}

// Whatever the operation and its counts are, with the barrier of every network.
TEST_P(GeneratorTest, IsRightAndBringsWordOfAllRanksWithABarrierBesideIt) {
  std::mt19937 random(7);
  for (uint32_t num_ranks : {2u, 3u, 4u, 6u, 8u, 9u, 16u}) {
    if (num_ranks > kMostRanks) break;
    const std::vector<topology::Topology> topologies = networks_of(GetParam(), num_ranks);
    for (const uint32_t root : {0u, num_ranks - 1}) {
      for (const auto& shapes : {even_shapes(GetParam().kind, num_ranks, root, 1),
                                 uneven_shapes(GetParam().kind, num_ranks, root, &random)}) {
        for (const topology::Topology& topology : topologies) {
          expect_joined(shapes, topology);
        }
      }
    }
  }
}

// In elements so large that few of them make the probe.
TEST_P(GeneratorTest, IsRightBehindAProbeThatCrossesEveryRail) {
  for (uint32_t num_ranks : {2u, 3u, 4u, 6u}) {
    auto shapes = even_shapes(GetParam().kind, num_ranks, num_ranks - 1, 8);
    for (OpShape& shape : shapes) shape.element_bytes = 64 * 1024;
    for (const topology::Topology& topology : networks_of(GetParam(), num_ranks)) {
      if (!can_probe(topology)) continue;
      std::vector<Schedule> schedules;
      for (const OpShape& shape : shapes) {
        schedules.push_back(GetParam().generate(shape, topology));
        const size_t num_steps = schedules.back().steps.size();
        add_probe(shape, topology, &schedules.back());
        EXPECT_EQ(schedules.back().steps.size(), num_steps + 2 * topology.num_rails);
      }
      EXPECT_TRUE(check_rails(topology, schedules).ok()) << check_rails(topology, schedules);
      const Status status = verify(shapes, schedules);
      ASSERT_TRUE(status.ok()) << status.message() << ", N = " << num_ranks;
    }
  }
}

TEST_P(GeneratorTest, IsRightForEveryRoot) {
  for (uint32_t num_ranks : {2u, 3u, 4u, 5u, 8u}) {
    for (uint32_t root = 0; root < num_ranks; ++root) {
      expect_right(even_shapes(GetParam().kind, num_ranks, root, 7), str_cat("root ", root));
    }
  }
}

// Large enough for cuts at cache lines (and for several segments of pipelined algorithms).
TEST_P(GeneratorTest, IsRightForLargeElements) {
  for (uint32_t num_ranks : {1u, 2u, 3u, 4u, 6u}) {
    auto shapes = even_shapes(GetParam().kind, num_ranks, num_ranks / 2, 301);
    for (OpShape& shape : shapes) shape.element_bytes = 4096;
    expect_right(shapes, "301 elements of 4096 bytes");
  }
}

INSTANTIATE_TEST_SUITE_P(All, GeneratorTest, testing::ValuesIn(all_schedules()), name_of);

// What a rank does may depend only on counts it knows, or ranks would plan different messages.
TEST(GeneratorTest, UsesOnlyTheCountsThatItsRankKnows) {
  for (OpKind kind : {OpKind::gather, OpKind::scatter}) {
    for (const Algorithm& algorithm : all_schedules()) {
      if (algorithm.kind != kind) continue;
      auto shapes = even_shapes(kind, 5, 3, 9);
      for (OpShape& shape : shapes) {
        if (shape.rank == shape.root) continue;
        for (uint32_t p = 0; p < 5; ++p) shape.counts[p] = p == shape.rank ? 9 : 1000 + p;
      }
      std::vector<Schedule> schedules;
      for (const OpShape& shape : shapes) {
        schedules.push_back(algorithm.generate(shape, topology::single_host(5, true)));
      }
      const Status status = verify(shapes, schedules);
      EXPECT_TRUE(status.ok()) << status.message();
    }
  }
}

}  // namespace
}  // namespace dmlcomm::schedule
