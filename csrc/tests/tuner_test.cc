// What the tuner makes of reports and times: when they count, and for what.
#include "engine/tuner.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "base/log.h"
#include "engine/compiled_plan.h"
#include "schedule/probe.h"
#include "tests/schedule_shapes.h"

namespace dmlcomm::engine {
namespace {

using schedule::OpKind;
using transport::RailMeter;
using transport::RankReport;
using Traffic = RailMeter::Traffic;

constexpr uint32_t kHosts = 4;
constexpr uint64_t kLarge = 8'000'000, kSmall = 8'000;
constexpr double kTold = 10e9;  // bits per second, by drivers
constexpr uint64_t kWindow = 8, kMostWindow = 256;
constexpr int kFirstOfSize = 8;
constexpr double kAlphas = 4, kRestSeconds = 20e-6;  // of every operation

// Carries out nothing: it ends with the report that it is given.
class ReportingRunner final : public Runner {
 public:
  ReportingRunner(const OpState& op, std::shared_ptr<const schedule::Schedule> schedule)
      : Runner(op.info()), plan_(std::move(schedule)) {
    plan_.tells_rates = Tuner::tells_rates(op.request().shape);
    plan_.latency = {.alphas = kAlphas, .rest_s = kRestSeconds};
  }

  Status start() override { return Status(); }
  Status advance(bool*) override { return Status(); }
  bool complete() const override { return true; }
  bool waits_for(int) const override { return false; }
  const CompiledPlan* plan() const override { return &plan_; }
  RankReport report() const override { return report_; }

  RankReport report_;

 private:
  CompiledPlan plan_;
};

struct Running {
  std::unique_ptr<OpState> op;
  schedule::Carried carried;
  std::unique_ptr<ReportingRunner> runner;
};

// Rank 0 of hosts with one rank each on a flat network of two rails, in a time that the test sets.
class TunerTest : public testing::Test {
 protected:
  explicit TunerTest(bool autotune = true, int ranks_on_host = 1, const std::string& named = "",
                     const std::string& plan = "", bool all_tune = true, bool all_probe = false)
      : planner_(network(), named, plan), meters_(2) {
    options_.plan = plan;
    options_.num_ranks = kHosts;
    options_.name = "all";
    options_.rails = {{"eth0", {}}, {"eth1", {}}};
    options_.rail_rates_bps = {static_cast<uint64_t>(kTold), static_cast<uint64_t>(kTold)};
    options_.config.emplace().autotune = autotune;
    const auto measure = [this](int64_t active_ns, double, Traffic traffic) {
      active_ns_.push_back(active_ns);
      traffic_.push_back(traffic);
    };
    tuner_ = std::make_unique<Tuner>(
        options_, Tuner::Network{ranks_on_host, false, all_tune, all_probe, meters_, measure},
        planner_, [this] { return now_ns_; });
  }

  static topology::Topology network() {
    std::vector<uint32_t> hosts(kHosts);
    std::iota(hosts.begin(), hosts.end(), 0u);
    return topology::flat_network(hosts, 2, kTold, true);
  }

  static OpRequest request(uint64_t bytes, OpKind kind = OpKind::all_reduce) {
    OpRequest request;
    request.shape = schedule::even_shapes(kind, kHosts, 0, bytes)[0];
    return request;
  }
  uint64_t window(uint64_t bytes, OpKind kind = OpKind::all_reduce) {
    return tuner_->window(request(bytes, kind).shape);
  }

  Running start(uint64_t bytes, OpKind kind = OpKind::all_reduce) {
    const uint64_t sequence = next_sequence_++;
    Running running;
    running.op =
        std::make_unique<OpState>(nullptr, request(bytes, kind), sequence, sequence, Deadline());
    running.carried = tuner_->plan(*running.op);
    auto schedule = planner_.plan(running.op->request().shape);
    EXPECT_TRUE(schedule.ok()) << schedule.status().message();
    running.runner = std::make_unique<ReportingRunner>(*running.op, *schedule);
    tuner_->planned(*running.op);
    tuner_->started(*running.op);
    return running;
  }
  void end(Running& running, const RankReport& report = {}) {
    running.runner->report_ = report;
    tuner_->ended(running.op->sequence(), *running.runner);
  }
  // Operations one after the other, each of `seconds`.
  void run(int count, uint64_t bytes, const RankReport& report = {}, double seconds = 1e-3,
           OpKind kind = OpKind::all_reduce) {
    for (int i = 0; i < count; ++i) {
      Running running = start(bytes, kind);
      now_ns_ += static_cast<int64_t>(seconds * 1e9);
      end(running, report);
    }
  }
  // Until an operation of this size need not run alone.
  void settle(uint64_t bytes, const RankReport& report = {}, double seconds = 1e-3) {
    for (int i = 0; i < 200 && (i == 0 || window(bytes) == 1); ++i) run(1, bytes, report, seconds);
    ASSERT_EQ(window(bytes), kWindow);
  }

  // Until rates are known and all ranks have word of tickets.
  void settle_with_tickets(const RankReport& report) {
    settle(kLarge, report, 0.25);
    run(static_cast<int>(kWindow), kLarge, report, 0.25);
  }

  RankReport own_report() {
    Running next = start(kSmall);
    const RankReport report = tuner_->own_report(*next.op, 0);
    end(next);
    return report;
  }
  double alpha_in_use() const { return planner_.topology().inter_host.alpha_s; }
  double rate_in_use(size_t rail) const {
    return 8 / planner_.topology().rail_beta(static_cast<uint32_t>(rail));
  }

  CommunicatorOptions options_;
  schedule::Planner planner_;
  std::vector<RailMeter> meters_;
  std::unique_ptr<Tuner> tuner_;
  int64_t now_ns_ = 1'000'000'000;
  uint64_t next_sequence_ = 1;
  std::vector<int64_t> active_ns_;  // of every measurement
  std::vector<Traffic> traffic_;
};

RankReport report_of(const std::vector<double>& bits_per_second, double round_trip_us = 0) {
  RankReport report;
  for (size_t rail = 0; rail < bits_per_second.size(); ++rail) {
    if (bits_per_second[rail] > 0) report.add_rate(rail, bits_per_second[rail]);
  }
  if (round_trip_us > 0) report.add_round_trip(round_trip_us);
  return report;
}

// Rates in reports are rounded to 9 %.
void expect_about(double found, double wanted) {
  EXPECT_GT(found, 0.95 * wanted);
  EXPECT_LT(found, 1.05 * wanted);
}

// --- how far is planned ahead ---

TEST_F(TunerTest, TheFirstOnesOfASizeRunAloneAndThenManyBesideEachOther) {
  for (int i = 0; i < kFirstOfSize; ++i) {
    ASSERT_EQ(window(kSmall), 1u) << i;
    run(1, kSmall);
  }
  settle(kSmall);
  // Another size begins anew.
  EXPECT_EQ(window(kLarge), 1u);
}

// Ranks that let the first operation carry a probe, if that is small.
class ProbingTest : public TunerTest {
 protected:
  ProbingTest() : TunerTest(true, 1, "", "", true, true) {}

  // Of operations of these sizes, one after the other.
  std::vector<bool> probes_of(const std::vector<uint64_t>& sizes) {
    std::vector<bool> probes;
    for (const uint64_t bytes : sizes) {
      Running running = start(bytes);
      probes.push_back(running.carried.probe);
      now_ns_ += 1'000'000;
      end(running);
    }
    return probes;
  }
};

TEST_F(ProbingTest, TheFirstOperationProbesIfItIsSmall) {
  EXPECT_EQ(probes_of({kSmall, kSmall, kLarge, kSmall}),
            std::vector<bool>({true, false, false, false}));
  EXPECT_EQ(traffic_.at(0), Traffic::telling);
}

TEST_F(ProbingTest, ProbesComeAgainAfterAThousandTimesTheirBytes) {
  run(1, kSmall);
  constexpr int kBetween = static_cast<int>(1024 * schedule::kProbeBytes / kSmall);
  std::vector<int> probing;
  for (int i = 0; i < kBetween + 10; ++i) {
    Running running = start(kSmall);
    if (running.carried.probe) probing.push_back(i);
    end(running);
  }
  ASSERT_EQ(probing.size(), 1u);
  EXPECT_NEAR(probing[0], kBetween, 2);
}

TEST_F(ProbingTest, LargeOperationsTellRatesThemselves) {
  EXPECT_EQ(probes_of({kLarge, kSmall}), std::vector<bool>({false, false}));
}

TEST_F(ProbingTest, TheTimeOfAnOperationWithAProbeDoesNotCount) {
  probes_of({kSmall});
  Running next = start(kSmall);
  EXPECT_EQ(tuner_->own_report(*next.op, 0).longest_s(), 0);
  now_ns_ += 1'000'000;
  end(next);
  next = start(kSmall);
  EXPECT_GT(tuner_->own_report(*next.op, 0).longest_s(), 0);
}

TEST_F(ProbingTest, ABarrierProbes) {
  Running barrier = start(0, OpKind::barrier);
  EXPECT_EQ(barrier.carried, (schedule::Carried{false, true}));
}

TEST_F(ProbingTest, WhatBringsNoWordOfAllRanksCarriesABarrierToo) {
  Running broadcast = start(kSmall, OpKind::broadcast);
  EXPECT_EQ(broadcast.carried, (schedule::Carried{true, true}));
}

TEST_F(TunerTest, NoOperationProbesIfARankDoesNotWantTo) {
  EXPECT_FALSE(start(kSmall).carried.probe);
}

class CarryingTest : public TunerTest {
 protected:
  using TunerTest::TunerTest;

  // How many of these operations carry a barrier.
  int count_carrying(int count, uint64_t bytes, OpKind kind) {
    int carrying = 0;
    for (int i = 0; i < count; ++i) {
      Running running = start(bytes, kind);
      carrying += running.carried.barrier ? 1 : 0;
      end(running);
    }
    return carrying;
  }
};

TEST_F(CarryingTest, OperationsWithoutWordOfAllRanksCarryABarrierWhileTheirSizeIsNew) {
  for (const OpKind kind :
       {OpKind::broadcast, OpKind::reduce, OpKind::gather, OpKind::scatter, OpKind::all_to_all}) {
    EXPECT_EQ(window(kSmall, kind), 1u);
    EXPECT_EQ(count_carrying(kFirstOfSize, kSmall, kind), kFirstOfSize);
    EXPECT_EQ(window(kSmall, kind), kWindow);
  }
}

TEST_F(CarryingTest, LaterOneInManyDoesIfNoOtherOperationBringsWord) {
  count_carrying(kFirstOfSize, kSmall, OpKind::broadcast);
  count_carrying(kFirstOfSize, kLarge, OpKind::broadcast);
  EXPECT_EQ(count_carrying(65 * 4, kSmall, OpKind::broadcast), 4);
  EXPECT_EQ(count_carrying(9 * 4, kLarge, OpKind::broadcast), 4);
  settle(kLarge);
  for (int i = 0; i < 100; ++i) {
    EXPECT_EQ(count_carrying(1, kLarge, OpKind::broadcast), 0);
    run(1, kLarge);
  }
}

TEST_F(CarryingTest, TheirReportsCount) {
  run(2, kLarge, report_of({200e6, 50e6}), 1e-3, OpKind::broadcast);
  expect_about(rate_in_use(0), 200e6);
  expect_about(rate_in_use(1), 50e6);
  // A change is noticed by the next one that carries a barrier, and counts kWindow later.
  run(kFirstOfSize, kLarge, report_of({200e6, 50e6}), 1e-3, OpKind::broadcast);
  run(9 + kWindow, kLarge, report_of({50e6, 50e6}), 1e-3, OpKind::broadcast);
  expect_about(rate_in_use(0), 50e6);
}

// A root is through before others are, and a leaf may be.
TEST_F(CarryingTest, TheirTimesDoNotCount) {
  RankReport report;
  report.set_time(0.5);
  run(20, kSmall, report, 1e-3, OpKind::broadcast);
  EXPECT_EQ(planner_.trials_of(request(kSmall, OpKind::broadcast).shape)->usual_s(), 0);
}

class NamedAlgorithmTest : public TunerTest {
 protected:
  NamedAlgorithmTest() : TunerTest(true, 1, "ring") {}
};

TEST_F(NamedAlgorithmTest, NothingIsTriedSoNothingRunsAlone) { EXPECT_EQ(window(kLarge), kWindow); }

TEST_F(TunerTest, OnceTicketsAreGivenAndRatesAreKnownAsManyArePlannedAsRanksHaveCalled) {
  RankReport report = report_of({200e6, 200e6});
  report.add_ticketed(160);
  settle_with_tickets(report);
  EXPECT_EQ(window(kLarge), kMostWindow);
  // Fewer are called at a time, for long.
  report.ticketed = RankReport::kUnknown;
  report.add_ticketed(20);
  run(1000, kLarge, report, 0.25);
  EXPECT_EQ(window(kLarge), kMostWindow);
  run(2000, kLarge, report, 0.25);
  EXPECT_EQ(window(kLarge), 32u);
  report.add_ticketed(33);
  run(33, kLarge, report, 0.25);
  EXPECT_EQ(window(kLarge), 64u);
  report.add_ticketed(1000);
  run(65, kLarge, report, 0.25);
  EXPECT_EQ(window(kLarge), kMostWindow);
}

TEST_F(TunerTest, WithTicketsForOneAfterTheOtherARateThatChangesCountsSoon) {
  RankReport report = report_of({200e6, 200e6});
  report.add_ticketed(1);
  settle_with_tickets(report);
  EXPECT_EQ(window(kLarge), kWindow);
  RankReport slower = report_of({50e6, 200e6});
  slower.add_ticketed(1);
  run(static_cast<int>(kWindow) + 1, kLarge, slower, 0.5);
  expect_about(rate_in_use(0), 50e6);
}

TEST_F(TunerTest, RatesThatStayUnknownHoldTicketsUpForSomeOperationsOnly) {
  RankReport report;
  report.add_ticketed(200);
  run(20, kSmall, report);
  EXPECT_NE(window(kSmall), kMostWindow);
  run(40, kSmall, report);
  EXPECT_EQ(window(kSmall), kMostWindow);
}

// --- rates ---

TEST_F(TunerTest, ReportsCountWhereAllRanksHaveThem) {
  settle(kLarge, {}, 0.01);
  Running first = start(kLarge);
  std::vector<Running> others;
  for (uint64_t i = 1; i < kWindow; ++i) others.push_back(start(kLarge));
  end(first, report_of({200e6, 50e6}));
  for (Running& other : others) end(other, report_of({200e6, 50e6}));
  // The one that is planned `kWindow` places behind the first one is the first to know its report.
  EXPECT_EQ(rate_in_use(0), kTold);
  run(1, kLarge);
  expect_about(rate_in_use(0), 200e6);
  expect_about(rate_in_use(1), 50e6);
}

// Whoever reads the log sees what has changed and why.
TEST_F(TunerTest, ALineNamesTheRatesBeforeAndAfterAndWhatChangedThem) {
  set_log_level(LogLevel::info);
  testing::internal::CaptureStderr();
  run(2, kLarge, report_of({200e6, 0}, 1000));
  run(2, kLarge, report_of({200e6, 200e6}, 1000));
  run(20, kLarge, report_of({140e6, 140e6}, 1000));
  set_log_level(LogLevel::warning);
  const std::string log = testing::internal::GetCapturedStderr();
  EXPECT_NE(log.find("group 'all': rates in use of the slowest host: eth0 10000 -> 203 Mb/s, "
                     "eth1 10000 -> 203 Mb/s (not measured), round trip unknown -> 1024 us; a "
                     "report differs twofold or more, most in the round trip; algorithms are "
                     "chosen anew"),
            std::string::npos)
      << log;
  EXPECT_NE(log.find("eth0 203 -> 143 Mb/s, eth1 203 -> 143 Mb/s, round trip 1024 us -> 1024 us; 2 "
                     "reports in a row differ, the last one most in the rate of eth0;"),
            std::string::npos)
      << log;
}

TEST_F(TunerTest, OperationsAtNewRatesRunAlone) {
  settle(kLarge, {}, 0.01);
  for (uint64_t i = 0; i <= kWindow; ++i) run(1, kLarge, report_of({200e6, 50e6}), 0.01);
  EXPECT_EQ(window(kLarge), 1u);
}

TEST_F(TunerTest, ARailThatHasShownNothingIsAsFarFromTheDriversFigureAsTheOthers) {
  run(2, kLarge, report_of({200e6, 0}));
  expect_about(rate_in_use(0), 200e6);
  expect_about(rate_in_use(1), 200e6);
}

// Rates in reports are rounded, and shares go by rates.
TEST_F(TunerTest, RailsThatDifferByAStepOfRoundingAreAlike) {
  run(2, kLarge, report_of({200e6, 218e6}));
  expect_about(rate_in_use(0), 209e6);
  EXPECT_EQ(rate_in_use(0), rate_in_use(1));
}

TEST_F(TunerTest, RatesThatReportsConfirmStayAsTheyWere) {
  run(kFirstOfSize, kLarge, report_of({0.9 * kTold, 0.9 * kTold}, 1000));
  EXPECT_EQ(rate_in_use(0), kTold);
  EXPECT_GT(alpha_in_use(), 0.9 * 500e-6);
}

TEST_F(TunerTest, LargerOperationsCorrectTheRatesOfSmallerOnes) {
  run(4, kLarge / 20, report_of({220e6, 110e6}));
  expect_about(rate_in_use(1), 110e6);
  run(1, kLarge, report_of({220e6, 110e6}));
  run(kFirstOfSize, kLarge, report_of({180e6, 110e6}));
  expect_about(rate_in_use(0), 180e6);
}

TEST_F(TunerTest, ARoundTripIsThePriceOfMessages) {
  run(2, kLarge, report_of({200e6, 200e6}, 10'000));
  const double alpha_s = planner_.topology().inter_host.alpha_s;
  EXPECT_GT(alpha_s, 0.95 * 5e-3);
  EXPECT_LT(alpha_s, 1.05 * 5.01e-3);
  transport::RailCounters shown, spare;
  tuner_->show_agreed(1, &shown);
  expect_about(shown.agreed_bits_per_second, 200e6);
  expect_about(shown.agreed_round_trip_us, 10'000);
  EXPECT_DOUBLE_EQ(shown.agreed_message_us, alpha_s * 1e6);
  tuner_->show_agreed(2, &spare);
  EXPECT_EQ(spare.agreed_message_us, 0);
}

class OtherRankOffTest : public CarryingTest {
 protected:
  OtherRankOffTest() : CarryingTest(true, 1, "", "", false) {}
};

TEST_F(OtherRankOffTest, ARankThatMustNotChangeKeepsAllFromIt) {
  run(30, kLarge, report_of({200e6, 50e6}));
  EXPECT_EQ(rate_in_use(0), kTold);
  EXPECT_EQ(window(kLarge), kMostWindow);
  EXPECT_EQ(count_carrying(200, kLarge, OpKind::broadcast), 0);
}

class AutotuneOffTest : public TunerTest {
 protected:
  AutotuneOffTest() : TunerTest(false, 1, "", "", false) {}
};

TEST_F(AutotuneOffTest, ItTellsAndLearnsNothing) {
  EXPECT_EQ(own_report(), RankReport());
  run(30, kLarge, report_of({200e6, 50e6}));
  EXPECT_EQ(rate_in_use(0), kTold);
  EXPECT_TRUE(traffic_.empty());
}

class PlanFileTest : public TunerTest {
 protected:
  PlanFileTest() : TunerTest(true, 1, "", "all_reduce:0=ring", false) {}
};

TEST_F(PlanFileTest, NothingIsLearnedOrTriedAlsoForOperationsThatItDoesNotName) {
  const schedule::OpShape gather = request(kLarge, OpKind::all_gather).shape;
  const schedule::Algorithm& chosen = planner_.choose(gather);
  RankReport slow = report_of({200e6, 50e6}, 10'000);
  slow.set_time(9);
  for (int i = 0; i < 40; ++i) {
    run(1, kLarge, slow, 1.0);
    run(1, kLarge, slow, 1.0, OpKind::all_gather);
    run(1, 0, slow, 1.0, OpKind::barrier);
    ASSERT_EQ(&planner_.choose(gather), &chosen) << i;
  }
  EXPECT_EQ(rate_in_use(0), kTold);
  EXPECT_EQ(rate_in_use(1), kTold);
  EXPECT_EQ(window(kLarge), kMostWindow);
  EXPECT_EQ(own_report(), RankReport());
}

TEST_F(PlanFileTest, RailsAreMeasuredForStripingAlsoOfOperationsThatRunBesideEachOther) {
  std::vector<Running> all;
  for (uint64_t i = 0; i < kMostWindow; ++i) all.push_back(start(kLarge));
  now_ns_ += 1'000'000'000;
  for (Running& one : all) end(one);
  EXPECT_EQ(traffic_, std::vector{Traffic::telling});
  EXPECT_EQ(active_ns_, std::vector<int64_t>{1'000'000'000});
}

// --- this rank's part of reports ---

void show(RailMeter& meter, double bits_per_second, uint32_t round_trip_us) {
  transport::Channel::Flow flow;
  flow.confirmed_bytes = 1'000'000;
  flow.min_rtt_us = round_trip_us;
  meter.add({}, flow, flow.confirmed_bytes);
  meter.end_period(0, static_cast<int64_t>(8e6 / bits_per_second * 1e9), 0, Traffic::telling);
}

class TwoRanksPerHostTest : public TunerTest {
 protected:
  TwoRanksPerHostTest() : TunerTest(true, 2) {}
};

TEST_F(TwoRanksPerHostTest, ARailHasTheRatesOfAllRanksOfItsHost) {
  show(meters_[1], 100e6, 3000);
  const RankReport report = own_report();
  EXPECT_EQ(report.rates[0], RankReport::kUnknown);
  expect_about(RankReport::bits_per_second(report.rates[1]), 200e6);
  expect_about(report.round_trip_us(), 3000);
}

TEST_F(TunerTest, AVeryShortRoundTripIsThatOfCalls) {
  show(meters_[0], 100e6, 5);
  expect_about(own_report().round_trip_us(), 50);
}

TEST_F(TunerTest, AReportHasTheTimeOfTheOperationBeforeIfThatRanAlone) {
  run(1, kSmall, {}, 0.03);
  expect_about(own_report().longest_s(), 0.03);
  run(20, kSmall);
  Running one = start(kSmall), other = start(kSmall);
  now_ns_ += 1'000'000;
  end(one);
  EXPECT_EQ(tuner_->own_report(*other.op, 0).longest_s(), 0);
  end(other);
  EXPECT_EQ(own_report().longest_s(), 0);
}

// --- times ---

double usual_s(schedule::Planner& planner, const schedule::OpShape& shape) {
  return planner.trials_of(shape)->usual_s();
}

RankReport report_of_times(double shortest_s, double longest_s) {
  RankReport report, longer;
  report.set_time(shortest_s);
  longer.set_time(longest_s);
  report.merge(longer);
  return report;
}

TEST_F(TunerTest, TheTimeOfTheRankThatWaitsLongestCounts) {
  run(3, kSmall, report_of_times(2e-3, 3e-3));
  expect_about(usual_s(planner_, request(kSmall).shape), 3e-3);
}

// Others have come late, which no algorithm changes.
TEST_F(TunerTest, WaitingForLateRanksIsNotTheOperationsTime) {
  run(3, kSmall, report_of_times(2e-3, 900e-3));
  expect_about(usual_s(planner_, request(kSmall).shape), 4e-3);
  run(3, kLarge, report_of_times(100e-3, 900e-3));
  expect_about(usual_s(planner_, request(kLarge).shape), 110e-3);
}

// The first one of those that have a time began before the last rates were known.
TEST_F(TunerTest, ALongTimeAtOtherRatesDoesNotCount) {
  run(3, kLarge, report_of({200e6, 200e6}));
  RankReport report = report_of({100e6, 100e6});
  run(1, kLarge, report);
  report.merge(report_of_times(0.1, 0.1));
  run(2, kLarge, report);
  EXPECT_EQ(usual_s(planner_, request(kLarge).shape), 0);
  run(1, kLarge, report);
  expect_about(usual_s(planner_, request(kLarge).shape), 0.1);
}

// --- the cost of a message ---

// Of barriers whose rounds take `round_s` each, and a round trip.
RankReport report_of_rounds(double round_s, double round_trip_us) {
  const double seconds = kAlphas * round_s + kRestSeconds;
  RankReport report = report_of_times(seconds, seconds);
  if (round_trip_us > 0) report.add_round_trip(round_trip_us);
  return report;
}

class MessageTest : public TunerTest {
 protected:
  void barriers(size_t count, const RankReport& report) {
    run(static_cast<int>(count), 0, report, 1e-3, OpKind::barrier);
  }

  // Two sets have ended, and count.
  static constexpr size_t kAll = 3 * MessageCost::kBarriers;
};

TEST_F(MessageTest, BarriersTellWhatAMessageTakes) {
  const double assumed_s = alpha_in_use();
  barriers(kAll, report_of_rounds(90e-6, 0));  // how much of that is the round trip?
  EXPECT_EQ(alpha_in_use(), assumed_s);
  run(kAll, kSmall, report_of_rounds(90e-6, 100));
  expect_about(alpha_in_use(), 60e-6);  // 10 us are assumed
  barriers(MessageCost::kBarriers + kWindow, report_of_rounds(90e-6, 100));
  expect_about(alpha_in_use(), 60e-6);
  barriers(kAll, report_of_rounds(90e-6, 100));
  expect_about(alpha_in_use(), 90e-6);
  // A longer round trip adds to it; a little more or less changes nothing.
  run(kWindow + 1, kSmall, report_of_rounds(190e-6, 300));
  expect_about(alpha_in_use(), 190e-6);
  barriers(kAll, report_of_rounds(180e-6, 300));
  expect_about(alpha_in_use(), 190e-6);
  barriers(kAll, report_of_rounds(165e-6, 300));
  expect_about(alpha_in_use(), 165e-6);
}

TEST_F(MessageTest, ACostThatIsLessThanAssumedIsTakenOver) {
  const double assumed_s = alpha_in_use();
  barriers(kAll + 2, report_of_rounds(assumed_s / 2, 10));
  expect_about(alpha_in_use(), assumed_s / 2);
}

// Who waits for a late rank, and the late one that waits for nobody, tell nothing of messages.
TEST_F(MessageTest, BarriersThatRanksEnterOneAfterTheOtherDoNotCount) {
  barriers(kAll, report_of_rounds(90e-6, 100));
  expect_about(alpha_in_use(), 90e-6);
  const double barrier_s = kAlphas * 90e-6 + kRestSeconds;
  for (const double late_s : {0.5 * barrier_s, barrier_s, 5e-3, 0.9}) {
    RankReport late = report_of_times(std::max(barrier_s - late_s, 5e-6), barrier_s + late_s);
    late.add_round_trip(100);
    barriers(10 * kAll, late);
    expect_about(alpha_in_use(), 90e-6);
  }
}

TEST_F(MessageTest, ALineNamesTheCostBeforeAndAfter) {
  run(kWindow + 1, kSmall, report_of_rounds(90e-6, 100));
  set_log_level(LogLevel::info);
  testing::internal::CaptureStderr();
  barriers(kAll, report_of_rounds(90e-6, 100));
  set_log_level(LogLevel::warning);
  const std::string log = testing::internal::GetCapturedStderr();
  EXPECT_NE(log.find("a message takes 90 us besides its bytes, not 59 us, by the times of 16 "
                     "barriers, twice in a row; algorithms are chosen anew"),
            std::string::npos)
      << log;
}

// Fills a set of barriers that take this long each; whether the cost has changed.
bool add_set(MessageCost& cost, double seconds) {
  bool has_changed = false;
  for (size_t i = 0; i < MessageCost::kBarriers; ++i) has_changed |= cost.add(seconds);
  return has_changed;
}

TEST(MessageCostTest, AFewLongOnesDoNotCount) {
  MessageCost cost;
  for (size_t i = 1; i < 2 * MessageCost::kBarriers; ++i) {
    EXPECT_FALSE(cost.add(i % 2 ? 20e-6 : 1));
  }
  EXPECT_EQ(cost.in_use_s(), std::nullopt);
  EXPECT_TRUE(cost.add(1));
  EXPECT_DOUBLE_EQ(*cost.in_use_s(), 20e-6);
}

TEST(MessageCostTest, AChangeHasToBeClearAndRepeated) {
  MessageCost cost;
  EXPECT_FALSE(add_set(cost, 20e-6));
  EXPECT_TRUE(add_set(cost, 21e-6));
  for (int i = 0; i < 20; ++i) EXPECT_FALSE(add_set(cost, i % 2 ? 15e-6 : 29e-6)) << i;
  // Two sets in a row that differ from what is in use, but from each other as well.
  for (const double seconds : {80e-6, 20e-6, 2e-6, 80e-6, 200e-6}) {
    EXPECT_FALSE(add_set(cost, seconds)) << seconds;
  }
  EXPECT_DOUBLE_EQ(*cost.in_use_s(), 21e-6);
  EXPECT_TRUE(add_set(cost, 190e-6));
  EXPECT_DOUBLE_EQ(*cost.in_use_s(), 190e-6);
}

// Times that scatter by a factor of four around what a message takes, on all barriers.
TEST(MessageCostTest, ACostSettlesWhereTimesScatter) {
  std::mt19937 random(7);
  std::uniform_real_distribution<double> octaves(0, 2);
  MessageCost cost;
  int num_changes = 0;
  for (int i = 0; i < 400 * static_cast<int>(MessageCost::kBarriers); ++i) {
    num_changes += cost.add(20e-6 * std::exp2(octaves(random)));
  }
  EXPECT_LE(num_changes, 4);
  EXPECT_GT(*cost.in_use_s(), 20e-6);
  EXPECT_LT(*cost.in_use_s(), 45e-6);
}

// --- what is told to the meters ---

TEST_F(TunerTest, OperationsThatAreSmallTellLittleOfRates) {
  run(1, kLarge);
  EXPECT_EQ(traffic_.back(), Traffic::telling);
  run(1, kSmall);
  EXPECT_EQ(traffic_.back(), Traffic::vague);
}

TEST_F(TunerTest, OperationsBesideMessagesTellNothing) {
  tuner_->message_started();
  run(2, kLarge);
  EXPECT_TRUE(traffic_.empty());
  tuner_->message_ended();
  Running one = start(kLarge);
  EXPECT_EQ(traffic_, std::vector{Traffic::mixed});
  tuner_->message_started();
  tuner_->message_ended();
  end(one);
  EXPECT_EQ(traffic_, std::vector{Traffic::mixed});
}

// A job that sends a message before each collective learns all the same, however many have been.
TEST_F(TunerTest, OperationsBetweenMessagesTellRates) {
  for (int i = 0; i < 100; ++i) {
    traffic_.clear();
    active_ns_.clear();
    tuner_->message_started();
    now_ns_ += 5'000'000;
    tuner_->message_ended();
    run(1, kLarge, {}, 20e-3);
    EXPECT_EQ(traffic_, (std::vector{Traffic::mixed, Traffic::telling})) << i;
    EXPECT_EQ(active_ns_, (std::vector<int64_t>{0, 20'000'000})) << i;
  }
}

TEST_F(TunerTest, TimeIsThatInWhichOperationsRun) {
  now_ns_ += 5'000'000;
  Running one = start(kLarge);
  now_ns_ += 1'000'000;
  Running other = start(kLarge);
  now_ns_ += 2'000'000;
  end(one);
  EXPECT_TRUE(active_ns_.empty());
  now_ns_ += 4'000'000;
  end(other);
  EXPECT_EQ(active_ns_, std::vector<int64_t>{7'000'000});
}

// A reading takes a system call for each connection.
TEST_F(TunerTest, LaterMeasurementsBetweenMessagesAreSeldom) {
  for (int i = 0; i < 16 + 1000; ++i) {
    tuner_->message_started();
    tuner_->message_ended();
    run(1, kLarge, {}, 1e-3);
  }
  EXPECT_EQ(traffic_.size(), 2u * (16 + 1000 / 10));
}

TEST_F(TunerTest, LaterMeasurementsAreSeldom) {
  run(16, kSmall, {}, 1e-3);
  EXPECT_EQ(traffic_.size(), 16u);
  run(100, kSmall, {}, 1e-3);
  EXPECT_EQ(traffic_.size(), 26u);
  EXPECT_EQ(active_ns_.back(), 10'000'000);
}

}  // namespace
}  // namespace dmlcomm::engine
