// Prices of whole operations, against arithmetic and against what was measured.
#include "schedule/price/pricing.h"

#include <gtest/gtest.h>

#include <numeric>
#include <string>
#include <vector>

#include "schedule/planner.h"
#include "tests/schedule_shapes.h"

namespace dmlcomm::schedule {
namespace {

// Hosts with one rank on a network of 200 Mb/s, of which 1448 of 1514 bytes are data.
topology::Topology network(uint32_t num_hosts, std::vector<uint32_t> grid) {
  std::vector<uint32_t> hosts(num_hosts);
  std::iota(hosts.begin(), hosts.end(), 0u);
  const double bits_per_second = 200e6 * 1448 / 1514;
  if (grid.empty()) return topology::flat_network(hosts, 1, bits_per_second, true);
  return topology::grid_network(hosts, std::move(grid), bits_per_second, true);
}

Price price_of(const topology::Topology& topology, OpKind kind, const std::string& name,
               uint64_t bytes) {
  const auto compared = compare(topology, topology, kind, bytes, 4);
  for (const Price& price : compared->prices) {
    if (price.algorithm->name == name) return price;
  }
  ADD_FAILURE() << name << " does not apply";
  return {};
}

// Seconds measured in labs of 200 Mb/s at MTU 1500, medians.
TEST(PricingTest, IsWithinTenPercentOfWhatWasMeasured) {
  struct Measured {
    uint32_t num_hosts;
    std::vector<uint32_t> grid;
    const char* name;
    uint64_t bytes;
    double seconds;
  };
  for (const Measured& measured :
       std::vector<Measured>{{9, {3, 3}, "bml_ring", 12'500'000, 0.477},
                             {9, {3, 3}, "bml_ring", 100'000'000, 3.79},
                             {8, {2, 2, 2}, "bml_ring", 12'500'000, 0.325},
                             {8, {2, 2, 2}, "bml_ring", 100'000'000, 2.49},
                             {16, {4, 4}, "bml_ring", 12'500'000, 0.518},
                             {16, {4, 4}, "bml_ring", 100'000'000, 4.07},
                             {9, {}, "ring", 12'500'000, 0.94}}) {
    const auto topology = network(measured.num_hosts, measured.grid);
    const Price price = price_of(topology, OpKind::all_reduce, measured.name, measured.bytes);
    EXPECT_NEAR(price.seconds, measured.seconds, 0.1 * measured.seconds);
    EXPECT_EQ(price.priced_by, PricedBy::simulation);
  }
}

TEST(PricingTest, CountsMessagesRoundsAndBytes) {
  const Price ring = price_of(network(4, {}), OpKind::all_reduce, "ring", 40'000);
  EXPECT_EQ(ring.traffic->messages, 6u);
  EXPECT_EQ(ring.traffic->rounds, 6u);
  EXPECT_NEAR(ring.traffic->rail_bytes[0], 60'000, 1'000);
  const Price bml = price_of(network(4, {2, 2}), OpKind::all_reduce, "bml", 40'000);
  EXPECT_EQ(bml.traffic->messages, 8u);
  EXPECT_EQ(bml.traffic->rounds, 4u);
  EXPECT_NEAR(bml.traffic->rail_bytes[0] + bml.traffic->rail_bytes[1], 60'000, 1'000);
}

TEST(PricingTest, OneRankStandsForAllWhereTheyAreManyAndAlike) {
  const Price price = price_of(network(4096, {16, 16, 16}), OpKind::all_reduce, "bml", 100'000'000);
  EXPECT_EQ(price.priced_by, PricedBy::lockstep);
  for (double bytes : price.traffic->rail_bytes) {
    EXPECT_NEAR(bytes, 2 * 4095.0 / 4096 / 3 * 1e8, 1e6);
  }
  const auto tree = price_of(network(4096, {16, 16, 16}), OpKind::all_reduce, "tree", 100'000'000);
  EXPECT_EQ(tree.priced_by, PricedBy::estimate);
  EXPECT_FALSE(tree.traffic.has_value());
}

TEST(PricingTest, RailsMayDifferInSpeed) {
  topology::Topology slow = network(9, {3, 3});
  slow.rail_betas_s_per_byte = {slow.inter_host.beta_s_per_byte,
                                4 * slow.inter_host.beta_s_per_byte};
  // A ring takes the slow rail as often as the other; BML moves half as much there as before.
  for (const auto& [name, factor] : {std::pair("bml", 2.0), {"bml_ring", 2.0}, {"ring", 4.0}}) {
    const double even = price_of(network(9, {3, 3}), OpKind::all_reduce, name, 12'500'000).seconds;
    const Price price = price_of(slow, OpKind::all_reduce, name, 12'500'000);
    EXPECT_NEAR(price.seconds, factor * even, 0.05 * price.seconds) << name;
    const double closed = price.algorithm->estimate(estimate_terms(slow, 12'500'000));
    EXPECT_NEAR(closed, price.seconds, 0.1 * price.seconds) << name;
  }
  topology::Topology striped = topology::flat_network({0, 1, 2, 3}, 2, 1e9, true);
  striped.rail_betas_s_per_byte = {8e-9, 24e-9};
  const Price ring = price_of(striped, OpKind::all_reduce, "ring", 4'000'000);
  EXPECT_NEAR(ring.traffic->rail_bytes[0], 4'500'000, 1'000);
  EXPECT_NEAR(ring.traffic->rail_bytes[1], 1'500'000, 1'000);
}

// The choice of a job is that of its planner, whatever the prices to count with.
TEST(PricingTest, NamesTheChoiceOfAJob) {
  size_t num_others = 0;
  for (const std::vector<uint32_t>& grid : {std::vector<uint32_t>{}, {3, 3}, {9}}) {
    const topology::Topology job = network(9, grid);
    topology::Topology counted = job;
    counted.inter_host.alpha_s = 1e-3;
    Planner planner(job, "");
    for (OpKind kind : {OpKind::all_reduce, OpKind::broadcast, OpKind::all_gather,
                        OpKind::reduce_scatter, OpKind::reduce}) {
      for (uint64_t bytes = 36; bytes < 40'000'000; bytes *= 10) {
        const auto compared = compare(counted, job, kind, bytes, 4);
        const bool has_pieces = kind == OpKind::all_gather || kind == OpKind::reduce_scatter;
        auto shape = even_shapes(kind, 9, 0, bytes / 4 / (has_pieces ? 9 : 1))[0];
        shape.element_bytes = 4;
        EXPECT_EQ(compared->prices[compared->chosen].algorithm, &planner.choose(shape)) << bytes;
        for (const Price& price : compared->prices) {
          EXPECT_GE(price.seconds, compared->prices[compared->fastest].seconds * 0.98);
        }
        num_others += compared->chosen != compared->fastest ? 1 : 0;
      }
    }
  }
  EXPECT_GT(num_others, 0u);  // the comparison of the two can fail
}

TEST(PricingTest, ProvesTheSchedulesOfANetwork) {
  EXPECT_TRUE(verify_all(network(9, {3, 3}), OpKind::all_reduce).ok());
  EXPECT_TRUE(verify_all(network(5, {}), OpKind::all_to_all).ok());
  EXPECT_TRUE(verify_all(network(5, {}), OpKind::barrier).ok());
  EXPECT_FALSE(verify_all(network(65, {}), OpKind::all_reduce).ok());
  EXPECT_FALSE(verify_all(network(4, {}), OpKind::send).ok());
}

TEST(PricingTest, RefusesWhatIsNoTopologyAndNoOperation) {
  topology::Topology topology = network(4, {});
  EXPECT_FALSE(compare(topology, topology, OpKind::send, 1, 1).ok());
  EXPECT_FALSE(compare(topology, topology, OpKind::all_reduce, 1, 0).ok());
  topology.rail_betas_s_per_byte = {1, 1};
  EXPECT_FALSE(compare(topology, topology, OpKind::all_reduce, 1, 1).ok());
}

}  // namespace
}  // namespace dmlcomm::schedule
