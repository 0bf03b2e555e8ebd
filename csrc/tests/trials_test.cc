// The choice among algorithms by estimates and times.
#include "schedule/trials.h"

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "schedule/algorithms.h"

namespace dmlcomm::schedule {
namespace {

const Algorithm* algorithm(const std::string& name) {
  return find_algorithm(OpKind::all_reduce, name);
}

const Algorithm* const kRing = algorithm("ring");
const Algorithm* const kTree = algorithm("tree");
const Algorithm* const kDirect = algorithm("direct");

using Times = std::map<const Algorithm*, double>;

// Runs operations one after the other; how many times each algorithm was taken.
std::map<const Algorithm*, int> run(Trials* trials, const Times& times, int num_operations) {
  std::map<const Algorithm*, int> taken;
  for (int i = 0; i < num_operations; ++i) {
    const Algorithm* next = &trials->next();
    trials->started();
    ++taken[next];
    trials->ended(*next, times.at(next));
  }
  return taken;
}

TEST(TrialsTest, AnEstimateThatHoldsIsKept) {
  Trials trials({kRing, kTree, kDirect}, {2, 1, 3});
  const auto taken = run(&trials, {{kTree, 1.05}}, 20);
  EXPECT_EQ(taken.at(kTree), 20);
}

TEST(TrialsTest, ATimeAboveAnotherEstimateHasThatTried) {
  Trials trials({kRing, kTree, kDirect}, {2, 1, 3});
  auto taken = run(&trials, {{kTree, 10}, {kRing, 2.5}}, 20);
  EXPECT_LE(taken.at(kTree), 3);
  EXPECT_EQ(&trials.next(), kRing);
  EXPECT_EQ(taken.count(kDirect), 0u);
}

TEST(TrialsTest, ATrialThatFailsIsShort) {
  Trials trials({kRing, kTree, kDirect}, {2, 3, 9});
  const auto taken = run(&trials, {{kRing, 5}, {kTree, 8}}, 40);
  EXPECT_EQ(taken.at(kTree), 2);
  EXPECT_EQ(&trials.next(), kRing);
}

TEST(TrialsTest, ATrialThatCostsLittleNeedsNoPromise) {
  Trials small({kRing, kTree, kDirect}, {2e-3, 5e-3, 90e-3});
  const auto taken = run(&small, {{kRing, 2e-3}, {kTree, 1.5e-3}}, 20);
  EXPECT_EQ(&small.usual(), kTree);
  EXPECT_EQ(taken.count(kDirect), 0u);
  Trials large({kRing, kTree}, {200e-3, 500e-3});
  EXPECT_EQ(run(&large, {{kRing, 200e-3}, {kTree, 150e-3}}, 20).count(kTree), 0u);
}

// Every time is up to a quarter longer than it should be, which is more than the differences.
TEST(TrialsTest, TheBestOfShortOperationsIsFoundInNoise) {
  for (int shift = 0; shift < 11; ++shift) {
    Trials trials({kRing, kTree, kDirect}, {3e-3, 2e-3, 9e-3});
    const Times times{{kRing, 3.4e-3}, {kTree, 4e-3}, {kDirect, 3e-3}};
    for (int i = 0; i < 120; ++i) {
      const Algorithm* next = &trials.next();
      trials.started();
      trials.ended(*next, times.at(next) * (1 + (i * 7 + shift) % 11 / 40.0));
    }
    EXPECT_EQ(&trials.next(), kDirect) << shift;
    EXPECT_FALSE(trials.is_trying());
  }
}

TEST(TrialsTest, ShortOperationsAreTriedForALimitedNumberOfTimes) {
  Trials trials({kRing, kTree, kDirect}, {3e-3, 2e-3, 4e-3});
  const auto taken = run(&trials, {{kRing, 3e-3}, {kTree, 3e-3}, {kDirect, 5e-3}}, 200);
  EXPECT_EQ(taken.at(kRing), 8);
  EXPECT_EQ(taken.at(kDirect), 2);
  EXPECT_FALSE(trials.is_trying());
}

TEST(TrialsTest, FewOperationsAtATimePayForTrials) {
  Trials trials({kRing, kTree, kDirect}, {3e-3, 2e-3, 3e-3});
  const Times times{{kRing, 2.4e-3}, {kTree, 2e-3}, {kDirect, 2.4e-3}};
  run(&trials, times, 20);
  for (int turn = 0; turn < 10; ++turn) EXPECT_GE(run(&trials, times, 20).at(kTree), 16) << turn;
  EXPECT_EQ(run(&trials, times, 20).at(kTree), 20);
}

TEST(TrialsTest, MostOfAnyTwentyOperationsAfterTheFirstTakeTheUsualAlgorithm) {
  std::vector<const Algorithm*> candidates;
  Times times;
  for (const char* name :
       {"direct", "bml", "bml_ring", "recursive_doubling", "halving_doubling", "tree", "ring"}) {
    candidates.push_back(algorithm(name));
    times[candidates.back()] = 2e-3 + 1e-4 * static_cast<double>(candidates.size());
  }
  Trials trials(candidates, {2e-4, 2.5e-4, 4e-4, 5e-4, 6e-4, 7e-4, 1e-3});
  run(&trials, times, 9);
  for (int turn = 0; turn < 20; ++turn) {
    EXPECT_GE(run(&trials, times, 20).at(candidates.front()), 14) << turn;
  }
  EXPECT_FALSE(trials.is_trying());
}

TEST(TrialsTest, TrialsWithoutTimesEnd) {
  Trials trials({kRing, kTree}, {3e-3, 2e-3});
  run(&trials, {{kRing, 3e-3}, {kTree, 3e-3}}, 7);
  run(&trials, {{kRing, 0}, {kTree, 0}}, 40);
  EXPECT_FALSE(trials.is_trying());
}

// Times of the trials are compared with later ones, of a time when something else may go on.
TEST(TrialsTest, AfterTheTrialsOnlyALargeDifferenceCounts) {
  Trials trials({kRing, kTree}, {3e-3, 2e-3});
  run(&trials, {{kRing, 3.3e-3}, {kTree, 3e-3}}, 80);
  EXPECT_EQ(run(&trials, {{kTree, 3.7e-3}}, 40).at(kTree), 40);
  run(&trials, {{kRing, 3.3e-3}, {kTree, 4.5e-3}}, 40);
  EXPECT_EQ(&trials.next(), kRing);
}

TEST(TrialsTest, TimesThatAreNotKnownChangeNothing) {
  Trials trials({kRing, kTree}, {2, 1});
  EXPECT_EQ(run(&trials, {{kTree, 0}}, 20).at(kTree), 20);
}

TEST(TrialsTest, OneSlowOperationIsNoReasonToChange) {
  Trials trials({kRing, kTree}, {2, 1});
  run(&trials, {{kTree, 1}}, 4);
  run(&trials, {{kTree, 50}}, 2);
  EXPECT_EQ(&trials.next(), kTree);
  EXPECT_EQ(run(&trials, {{kTree, 1}}, 4).at(kTree), 4);
}

TEST(TrialsTest, ANetworkThatChangesIsExploredAnew) {
  Trials trials({kRing, kTree}, {1, 2});
  run(&trials, {{kRing, 10}, {kTree, 30}}, 10);
  ASSERT_EQ(&trials.next(), kRing);
  run(&trials, {{kRing, 100}, {kTree, 20}}, 20);
  EXPECT_EQ(&trials.next(), kTree);
}

TEST(TrialsTest, NewEstimatesCountWhereThereIsNoTime) {
  Trials trials({kRing, kTree}, {2, 1});
  trials.estimate({1, 4});
  EXPECT_EQ(&trials.next(), kRing);
  run(&trials, {{kRing, 1.1}}, 4);
  trials.estimate({1, 1.05});
  EXPECT_EQ(&trials.next(), kRing);
}

TEST(TrialsTest, TimesOfBeforeDoNotBeatNewEstimates) {
  Trials trials({kRing, kTree, kDirect}, {1, 0.9, 9});
  run(&trials, {{kTree, 2}, {kRing, 1}}, 10);
  ASSERT_EQ(&trials.next(), kRing);
  // The network has become slower, and more so for the tree.
  trials.estimate({3, 8, 30});
  EXPECT_EQ(run(&trials, {{kRing, 3}}, 10).at(kRing), 10);
}

TEST(TrialsTest, TimesOfShortOperationsOutliveNewEstimates) {
  Trials trials({kRing, kTree}, {3e-3, 2e-3});
  const Times times{{kRing, 2e-3}, {kTree, 4e-3}};
  run(&trials, times, 40);
  trials.estimate({9e-3, 1e-3});
  EXPECT_EQ(run(&trials, times, 20).at(kRing), 20);
}

// The times of operations come many operations later where several run at once.
TEST(TrialsTest, TimesMayComeLate) {
  Trials trials({kRing, kTree, kDirect}, {1, 2, 9});
  const Times times{{kRing, 20}, {kTree, 3}};
  std::vector<const Algorithm*> started;
  for (size_t i = 0; i < 64; ++i) {
    if (i >= 16) trials.ended(*started[i - 16], times.at(started[i - 16]));
    started.push_back(&trials.next());
    trials.started();
  }
  EXPECT_EQ(started.back(), kTree);
}

}  // namespace
}  // namespace dmlcomm::schedule
