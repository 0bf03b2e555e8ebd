// Flows that come and go: what holds for any tasks, on random ones. Python tests compare the times.
#include "sim/simulation.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "sim/earliest.h"

namespace dmlcomm::sim {
namespace {

bool always(size_t) { return true; }

TEST(EarliestTest, FollowsEveryChange) {
  std::mt19937 random(1);
  for (size_t count : {1, 2, 7, 64, 100}) {
    Earliest earliest(count);
    std::vector<double> times(count, std::numeric_limits<double>::infinity());
    for (int step = 0; step < 300; ++step) {
      const auto index = static_cast<uint32_t>(random() % count);
      times[index] = random() % 20;
      earliest.set(index, times[index]);
      const auto least = std::min_element(times.begin(), times.end());
      EXPECT_EQ(earliest.time(), *least);
      EXPECT_EQ(earliest.index(), least - times.begin());
    }
  }
}

struct Job {
  std::vector<double> capacities;
  std::vector<FlowSpec> flows;
};

Job random_job(uint32_t seed) {
  std::mt19937 random(seed);
  Job job;
  const uint32_t num_links = 1 + random() % 30;
  for (uint32_t i = 0; i < num_links; ++i) job.capacities.push_back(1e6 * (1 + random() % 100));
  const uint32_t num_flows = 1 + random() % 300;
  for (uint32_t i = 0; i < num_flows; ++i) {
    FlowSpec flow;
    for (uint32_t hop = random() % 5; hop > 0; --hop) flow.path.push_back(random() % num_links);
    flow.bytes = static_cast<double>(random() % 3 == 0 ? 1'000'000 : random() % 1'000'000);
    flow.start_s = random() % 2 == 0 ? 0 : 1e-3 * (random() % 3000);
    for (uint32_t k = i == 0 ? 0 : random() % 3; k > 0; --k) flow.after.push_back(random() % i);
    flow.weight = 1 + random() % 3;
    flow.priority = random() % 3;
    job.flows.push_back(flow);
  }
  return job;
}

Simulation simulation_of(const Job& job) {
  Simulation simulation = *Simulation::make(job.capacities, {});
  for (const FlowSpec& flow : job.flows) EXPECT_TRUE(simulation.add_flow(flow).ok());
  return simulation;
}

TEST(SimulationTest, NoLinkCarriesMoreThanItCanAndNobodyIsEarly) {
  for (uint32_t seed = 0; seed < 60; ++seed) {
    const Job job = random_job(seed);
    const Outcome outcome = *simulation_of(job).run(always);
    for (size_t link = 0; link < job.capacities.size(); ++link) {
      const double busy_s = 8 * outcome.link_bytes[link] / job.capacities[link];
      EXPECT_LE(busy_s, outcome.makespan_s * (1 + 1e-8));
    }
    for (size_t i = 0; i < job.flows.size(); ++i) {
      double ready_s = job.flows[i].start_s;
      for (TaskId other : job.flows[i].after) {
        ready_s = std::max(ready_s, outcome.ends_s[static_cast<size_t>(other)]);
      }
      EXPECT_EQ(outcome.starts_s[i], ready_s);
      for (int64_t link : job.flows[i].path) {
        const double alone_s = 8 * job.flows[i].bytes / job.capacities[static_cast<size_t>(link)];
        EXPECT_GE(outcome.ends_s[i] - ready_s, alone_s * (1 - 1e-8) - 1e-12);
      }
    }
  }
}

TEST(SimulationTest, NoLinkCarriesMoreThanItCanBetweenTwoShares) {
  for (uint32_t seed = 0; seed < 60; ++seed) {
    const Job job = random_job(seed);
    const Simulation simulation = simulation_of(job);
    const Outcome outcome = *simulation.run(always, 0.05);
    for (size_t link = 0; link < job.capacities.size(); ++link) {
      const double busy_s = 8 * outcome.link_bytes[link] / job.capacities[link];
      EXPECT_LE(busy_s, outcome.makespan_s * (1 + 1e-8));
    }
    for (size_t i = 0; i < job.flows.size(); ++i) {
      for (TaskId other : job.flows[i].after) {
        EXPECT_GE(outcome.starts_s[i], outcome.ends_s[static_cast<size_t>(other)]);
      }
      for (int64_t link : job.flows[i].path) {
        const double alone_s = 8 * job.flows[i].bytes / job.capacities[static_cast<size_t>(link)];
        EXPECT_GE(outcome.ends_s[i] - outcome.starts_s[i], alone_s * (1 - 1e-8) - 1e-12);
      }
    }
    EXPECT_EQ(simulation.run(always, -1).status().code(), StatusCode::invalid_argument);
  }
}

TEST(SimulationTest, ALinkIsNeverIdleWhileItsOnlyFlowsWait) {
  // One link: the last flow ends when all bytes are through, whatever the shares are.
  std::mt19937 random(7);
  Simulation simulation = *Simulation::make({8e6}, {});
  double bytes = 0;
  for (int i = 0; i < 500; ++i) {
    FlowSpec flow;
    flow.path = {0};
    flow.bytes = static_cast<double>(1 + random() % 100'000);
    flow.weight = 1 + random() % 5;
    flow.priority = random() % 4;
    bytes += flow.bytes;
    ASSERT_TRUE(simulation.add_flow(flow).ok());
  }
  EXPECT_NEAR(simulation.run(always)->makespan_s, bytes / 1e6, 1e-6 * bytes / 1e6);
}

TEST(SimulationTest, ARunThatMayNotGoOnIsAborted) {
  Simulation simulation = *Simulation::make({}, {});
  for (int i = 0; i < 1000; ++i) {
    ASSERT_TRUE(simulation.add_compute({.seconds = 0.001 * i, .after = {}}).ok());
  }
  EXPECT_EQ(simulation.run([](size_t) { return false; }).status().code(), StatusCode::aborted);
  EXPECT_EQ(simulation.run(always)->makespan_s, 0.999);
}

}  // namespace
}  // namespace dmlcomm::sim
