// Windows, clocks and rows of a model, without any connection.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "ps/wire.h"
#include "tests/model_under_test.h"

namespace dmlcomm::ps {
namespace {

using tests::kNoRate;
using tests::ModelUnderTest;
using tests::spec_of;

TEST(PsModel, AppliesAWindowWhenEveryWorkerHasClosedIt) {
  ModelUnderTest model(spec_of(3, Apply::at_clock, Combine::sum, "add"), 2);
  model.push(0, 0, 1);
  model.push(1, 0, 10);
  EXPECT_EQ(model.pull(0), 0);
  model->tick(0, 1);
  EXPECT_TRUE(std::isnan(model.pull(1)));
  model->tick(1, 1);
  EXPECT_EQ(model.pull(1), 11);
}

TEST(PsModel, ClosingPushesAreAppliedPieceByPiece) {
  ModelUnderTest model(spec_of(3, Apply::at_clock, Combine::mean, "assign"), 2);
  model.push(0, 0, 1, true);
  EXPECT_TRUE(std::isnan(model.pull(1)));
  model.push(1, 0, 4, true);
  EXPECT_EQ(model.pull(1), 2.5F);
}

TEST(PsModel, AFastWorkersNextWindowStaysOutOfTheVersionOfTheOthers) {
  ModelUnderTest model(spec_of(1, Apply::at_clock, Combine::sum, "add"), 2);
  model.push(0, 0, 1, true);
  model.push(0, 1, 100, true);
  model.push(1, 0, 10, true);
  EXPECT_EQ(model.pull(1), 11);
  model.push(1, 1, 1000, true);
  EXPECT_EQ(model.pull(2), 1111);
}

TEST(PsModel, AppliesEveryPushAtOnceWhereAsked) {
  ModelUnderTest model(spec_of(2, Apply::at_push, Combine::mean, "add"), 2);
  model.push(0, 0, 1);
  EXPECT_EQ(model.pull(0), 1);
  model.push(0, 7, 2);
  EXPECT_EQ(model.pull(0), 3);
  EXPECT_TRUE(std::isnan(model.pull(1)));
}

TEST(PsModel, PushesAreCountedOnceInWhateverOrderTheyAreRepeated) {
  ModelUnderTest model(spec_of(2, Apply::at_clock, Combine::sum, "add"), 1);
  model.push_as(0, 0, 5, 1);
  model.push_as(0, 0, 5, 1);
  model.push_as(0, 0, 4, 10);
  model.push_as(0, 0, 4, 10);
  model.push_as(0, 0, 5, 1);
  model->tick(0, 1);
  EXPECT_EQ(model.pull(1), 11);
}

TEST(PsModel, WhoComesAfterAllHaveGoneGoesOnWhereTheyWere) {
  ModelUnderTest model(spec_of(2, Apply::at_clock, Combine::sum, "add"), 1);
  model->attach(0, 0, 1);
  model.push(0, 0, 1);
  model->tick(0, 1);
  model->drop(0);
  EXPECT_EQ(model->min_clock(), 1U);
  EXPECT_EQ(model.pull(1), 1);  // what was complete before it left
  model->attach(7, model->min_clock(), 2);
  model.push_as(7, 1, 1, 10, true);
  EXPECT_EQ(model.pull(2), 11);
}

TEST(PsModel, ASuccessorIsBoundByItsOwnClockAndItsPushesAreNew) {
  ModelUnderTest model(spec_of(2, Apply::at_clock, Combine::sum, "add"), 2);
  model->attach(0, 0, 1);
  model->attach(1, 0, 1);
  model.push_as(0, 0, 100, 1, true);
  model.push_as(0, 1, 101, 1, true);
  model->drop(0);
  model->attach(0, 0, 2);  // the same number, another process
  model.push_as(1, 0, 100, 1000, true);
  EXPECT_TRUE(std::isnan(model.pull(1)));
  model.push_as(0, 0, 100, 10, true);
  EXPECT_EQ(model.pull(1), 1011);
}

TEST(PsModel, FirstValuesThatComeLateChangeNothing) {
  ModelUnderTest model(spec_of(2, Apply::at_clock, Combine::sum, "add"), 1);
  const std::vector<float> late(2, 5);
  model->set(0, 0, reinterpret_cast<const std::byte*>(late.data()));
  EXPECT_EQ(model.pull(0), 0);
}

TEST(PsModel, APieceThatLagsBehindStillReachesTheSnapshot) {
  ModelUnderTest model(spec_of(70'000, Apply::at_clock, Combine::sum, "add"), 1, 2);
  for (uint64_t clock = 0; clock < 5; ++clock) {
    ASSERT_TRUE(model.push_piece(0, {0, clock, clock + 1, clock + 1, false, kNoRate}, 1));
    model->tick(0, clock + 1);  // piece 1 is not touched at all
  }
  const auto snapshot = model->take_snapshot();
  ASSERT_NE(snapshot, nullptr);
  EXPECT_EQ(snapshot->clock % 2, 0U);
  EXPECT_EQ(snapshot->workers, std::vector<uint32_t>{0});
}

TEST(PsModel, LatePushesGoToTheFirstOpenWindow) {
  ModelUnderTest model(spec_of(2, Apply::at_clock, Combine::sum, "add"), 1);
  model->tick(0, 3);
  EXPECT_EQ(model.pull(3), 0);
  model.push(0, 1, 8);
  model->tick(0, 4);
  EXPECT_EQ(model.pull(4), 8);
}

TEST(PsModel, WhoIsLostHoldsNobodyUp) {
  ModelUnderTest model(spec_of(2, Apply::at_clock, Combine::mean, "assign"), 3);
  model.push(0, 0, 1, true);
  model.push(1, 0, 3, true);
  EXPECT_TRUE(std::isnan(model.pull(1)));
  model->drop(2);
  EXPECT_EQ(model.pull(1), 2);
}

TEST(PsModel, WhoIsFarAheadWaits) {
  ModelUnderTest model(spec_of(1, Apply::at_clock, Combine::sum, "add"), 2);
  for (uint64_t clock = 0; clock < kMaxWindows; ++clock) EXPECT_TRUE(model.push(0, clock, 1));
  EXPECT_FALSE(model.push(0, kMaxWindows, 1));
  model->tick(0, kMaxWindows);
  model->tick(1, 1);
  EXPECT_TRUE(model.push(0, kMaxWindows, 1));
}

// One piece of 1 MiB: a window takes as much.
TEST(PsModel, WindowsTakeNoMoreMemoryThanTheyMay) {
  constexpr uint64_t kCount = 1u << 18, kBytes = kCount * sizeof(float);
  const auto spec = spec_of(kCount, Apply::at_clock, Combine::sum, "add");
  ModelUnderTest unlimited(spec, 2);
  const uint64_t clock_bytes =
      unlimited->shard(0)->pieces().size() * unlimited->shard(0)->pieces()[0].count * sizeof(float);
  EXPECT_GE(clock_bytes, kBytes);
  const std::vector<std::pair<uint64_t, uint64_t>> cases{
      {5, 5 * clock_bytes}, {4, 5 * clock_bytes - 1}, {2, 1}};
  for (const auto& [windows, bytes] : cases) {
    ModelUnderTest model(spec, 2, 0, bytes);
    for (uint64_t clock = 0; clock < windows; ++clock) EXPECT_TRUE(model.push(0, clock, 1));
    EXPECT_FALSE(model.push(0, windows, 1)) << bytes;
    model->tick(1, 1);
    EXPECT_FALSE(model.push(0, windows, 1)) << "worker 0 has not closed clock 0";
    model->tick(0, 1);
    EXPECT_TRUE(model.push(0, windows, 1)) << bytes;
  }
}

// What a proxy sends is kept apart, by sender, until the clock is complete.
TEST(PsModel, WindowsThatKeepEveryPushTakeNoMoreMemoryEither) {
  const auto spec = spec_of(1u << 18, Apply::at_clock, Combine::sum, "add");
  const auto pieces = pieces_of(spec, 0);
  const uint64_t clock_bytes = pieces.size() * pieces[0].count * sizeof(float);
  const std::map<uint32_t, uint64_t> below{{0, 0}};
  ModelUnderTest model(spec, 2, 0, 8 * clock_bytes);
  const auto push = [&](uint64_t clock) {
    Push push{0, clock, clock + 1, 0, true, kNoRate};
    push.merged = &below;
    return model.push_piece(0, push, 1);
  };
  for (uint64_t clock = 0; clock < 4; ++clock) EXPECT_TRUE(push(clock)) << clock;
  EXPECT_FALSE(push(4)) << "8 buffers are 4 clocks of 2 workers";
}

TEST(PsModel, MemoryOfWindowsGoesWhenTheSlowOneHasCaughtUp) {
  constexpr uint64_t kBehind = 50;
  const auto spec = spec_of(1u << 18, Apply::at_clock, Combine::sum, "add");
  ModelUnderTest model(spec, 2);
  const auto train = [&](uint32_t worker, uint64_t first, uint64_t last) {
    for (uint64_t clock = first; clock < last; ++clock) {
      EXPECT_TRUE(model.push(worker, clock, 1, true)) << clock;
    }
  };
  train(0, 0, kBehind);
  const size_t most = model->buffer_bytes();
  EXPECT_GE(most, kBehind * model->shard(0)->pieces()[0].count * sizeof(float));
  train(1, 0, kBehind);
  for (uint64_t clock = kBehind; clock < 20 * kBehind; ++clock) {
    train(0, clock, clock + 1);
    train(1, clock, clock + 1);
  }
  EXPECT_LE(model->buffer_bytes(), most / 4);
}

TEST(PsModel, AWorkersPushIsAddedToTheSumOfAProxy) {
  ModelUnderTest model(spec_of(2, Apply::at_clock, Combine::sum, "add"), 3);
  const std::map<uint32_t, uint64_t> below{{1, 0}, {2, 0}};
  Push sum{kMaxWorkers, 0, 1, 0, true, kNoRate};
  sum.merged = &below;
  sum.num_pushes = 2;
  ASSERT_TRUE(model.push_piece(0, sum, 5));
  ASSERT_TRUE(model.push_piece(0, {0, 0, 1, 0, true, kNoRate}, 10));
  EXPECT_EQ(model.pull(1), 15);
}

TEST(PsModel, KeepsASnapshotOfExactlyTheClock) {
  ModelUnderTest model(spec_of(70'000, Apply::at_clock, Combine::sum, "add"), 1, 2);
  const auto push_all = [&](uint64_t clock, float value) {
    for (size_t piece = 0; piece < model->shard(0)->pieces().size(); ++piece) {
      ASSERT_TRUE(model.push_piece(piece, {0, clock, clock + 1, 0, true, kNoRate}, value));
    }
  };
  for (uint64_t clock = 0; clock < 3; ++clock) push_all(clock, 1);
  const auto snapshot = model->take_snapshot();
  ASSERT_NE(snapshot, nullptr);
  EXPECT_EQ(snapshot->clock, 2U);
  const auto* weights = reinterpret_cast<const float*>(snapshot->shards[0].arrays[0].data());
  for (size_t i = 0; i < 70'000; ++i) ASSERT_EQ(weights[i], 2);
  EXPECT_EQ(model->take_snapshot(), nullptr);

  ModelUnderTest other(spec_of(70'000, Apply::at_clock, Combine::sum, "add"), 1);
  ASSERT_TRUE(other->restore(*snapshot).ok());
  EXPECT_EQ(other.pull(2), 2);
  EXPECT_TRUE(std::isnan(other.pull(3)));
}

TEST(PsModel, APushIsNotAppliedAgainByTheServerThatRestoresItsSnapshot) {
  ModelUnderTest model(spec_of(2, Apply::at_clock, Combine::sum, "add"), 2, 1);
  for (uint32_t worker : {0, 1}) model->attach(worker, 0, 100);
  model.push_as(0, 0, 100, 1, true);
  model.push_as(0, 1, 101, 10, true);  // of a later clock than the snapshot
  model.push_as(1, 0, 100, 1, true);
  const auto snapshot = model->take_snapshot();
  ASSERT_NE(snapshot, nullptr);
  ASSERT_EQ(snapshot->clock, 1U);

  ModelUnderTest other(spec_of(2, Apply::at_clock, Combine::sum, "add"), 2, 1);
  ASSERT_TRUE(other->restore(*snapshot).ok());
  other->attach(0, 0, 100);
  other->attach(1, 1, 200);  // another client with the number
  other.push_as(0, 0, 100, 1, true);
  EXPECT_EQ(other.pull(1), 2);
  other.push_as(0, 1, 101, 10, true);
  other.push_as(1, 1, 100, 100, true);
  EXPECT_EQ(other.pull(2), 112);
  EXPECT_EQ(other->take_snapshot()->shards[0].pushes[0].size(), 3U);
}

TEST(PsModel, RowsAreNotAddedAgainByTheServerThatRestoresTheirSnapshot) {
  ModelSpec spec = spec_of(0, Apply::at_push, Combine::sum, "add");
  spec.spaces[0] = {DType::f32, 8, 2, DType::f32};
  ModelUnderTest model(spec, 1, 1);
  model->attach(0, 0, 100);
  const int64_t row = 2;
  const std::vector<float> values{4, 6};
  const auto push_to = [&](ModelUnderTest& to) {
    ASSERT_TRUE(to->push_rows(0, {0, 0, 100, 100, false, kNoRate}, {0, &row, 1},
                              reinterpret_cast<const std::byte*>(values.data()))
                    .value());
  };
  push_to(model);
  model->tick(0, 1);
  const auto snapshot = model->take_snapshot();
  ASSERT_NE(snapshot, nullptr);
  ModelUnderTest other(spec, 1);
  ASSERT_TRUE(other->restore(*snapshot).ok());
  other->attach(0, 0, 100);
  push_to(other);
  std::vector<float> pulled(2);
  ASSERT_TRUE(
      other->pull_rows(0, 1, {0, &row, 1}, reinterpret_cast<std::byte*>(pulled.data())).value());
  EXPECT_EQ(pulled, values);
}

TEST(PsModel, TheLastClockIsNotLostWhileTheSnapshotBeforeWaits) {
  ModelUnderTest model(spec_of(70'000, Apply::at_clock, Combine::sum, "add"), 1, 1);
  const auto push = [&](size_t piece, uint64_t clock) {
    ASSERT_TRUE(model.push_piece(piece, {0, clock, clock + 1, 0, true, kNoRate}, 1));
  };
  for (uint64_t clock = 0; clock < 3; ++clock) {
    for (size_t piece : {0, 1}) push(piece, clock);
  }
  ASSERT_EQ(model->take_snapshot()->clock, 1U);
  push(0, 3);  // it leaves clock 3, whose snapshot has begun; the other piece stays there
  const auto snapshot = model->take_snapshot();
  ASSERT_NE(snapshot, nullptr);
  EXPECT_EQ(snapshot->clock, 3U);
  EXPECT_EQ(snapshot->workers, std::vector<uint32_t>{0});
  const auto* weights = reinterpret_cast<const float*>(snapshot->shards[0].arrays[0].data());
  for (size_t i = 0; i < 70'000; ++i) ASSERT_EQ(weights[i], 3);
}

TEST(PsModel, AModelThatStopsHasSnapshotsOfTheLastTwoClocksAndGoesNoFurther) {
  ModelUnderTest model(spec_of(70'000, Apply::at_clock, Combine::sum, "add"), 2, 100);
  uint64_t sequence = 0;
  const auto push = [&](size_t piece, uint32_t worker, uint64_t clock) {
    return model.push_piece(piece, {worker, clock, ++sequence, 0, true, kNoRate}, 1);
  };
  for (uint64_t clock = 0; clock < 3; ++clock) {
    for (uint32_t worker : {0, 1}) ASSERT_TRUE(push(0, worker, clock));
  }
  for (uint64_t clock = 0; clock < 2; ++clock) {
    for (uint32_t worker : {0, 1}) ASSERT_TRUE(push(1, worker, clock));
  }
  model->stop_clocks();
  EXPECT_EQ(model->take_snapshot(), nullptr);  // the second piece is on its way to clock 3
  const auto expect_snapshot_of = [&](uint64_t clock) {
    const auto snapshot = model->take_snapshot();
    ASSERT_NE(snapshot, nullptr);
    EXPECT_EQ(snapshot->clock, clock);
    const auto* weights = reinterpret_cast<const float*>(snapshot->shards[0].arrays[0].data());
    for (size_t i = 0; i < 70'000; ++i) ASSERT_EQ(weights[i], 2 * clock);
  };
  for (uint32_t worker : {0, 1}) ASSERT_TRUE(push(1, worker, 2));
  for (size_t piece : {0, 1}) ASSERT_TRUE(push(piece, 0, 3));
  for (size_t piece : {0, 1}) EXPECT_FALSE(push(piece, 0, 4)) << "it would be lost";
  expect_snapshot_of(3);
  for (size_t piece : {0, 1}) ASSERT_TRUE(push(piece, 1, 3));
  expect_snapshot_of(4);
  EXPECT_FALSE(push(0, 1, 4));
  EXPECT_EQ(model.pull(3), 8);
  EXPECT_TRUE(std::isnan(model.pull(4))) << "other servers would go on";
}

TEST(PsModel, ASnapshotTakesWhatNobodyAskedFor) {
  ModelUnderTest model(spec_of(2, Apply::at_clock, Combine::sum, "add"), 1, 2);
  model->attach(0, 0, 1);
  model.push(0, 0, 4);
  model->tick(0, 4);
  model->drop(0);
  const auto snapshot = model->take_snapshot();
  ASSERT_NE(snapshot, nullptr);
  EXPECT_EQ(snapshot->clock, 4U);
  EXPECT_EQ(*reinterpret_cast<const float*>(snapshot->shards[0].arrays[0].data()), 4);

  // A job that begins anew waits for it.
  EXPECT_EQ(snapshot->workers, std::vector<uint32_t>{0});
  ModelUnderTest other(spec_of(2, Apply::at_clock, Combine::sum, "add"), 1, 2);
  ASSERT_TRUE(other->restore(*snapshot).ok());
  EXPECT_EQ(other->min_clock(), 4U);
  other->drop(0);
  EXPECT_EQ(other->min_clock(), 4U);
  EXPECT_EQ(other->take_snapshot(), nullptr);  // it is the one that there is
}

TEST(PsModel, ASnapshotDoesNotBeginWithAClockThatAPieceSkips) {
  const auto describe = [](uint64_t clock) {
    auto snapshot = std::make_shared<Snapshot>();
    snapshot->clock = clock;
    return snapshot;
  };
  SnapshotKeeper keeper(1, 2, describe, [](Snapshot&) {});
  const auto snapshot = keeper.at(1);
  EXPECT_FALSE(keeper.done(snapshot));
  EXPECT_TRUE(keeper.done(keeper.at(1)));
  (void)keeper.leave(1);
  EXPECT_EQ(keeper.at(7), nullptr);
  (void)keeper.leave(1);
  EXPECT_EQ(keeper.next_stop(1, 8), 8U);  // a piece without windows, on its way
  EXPECT_EQ(keeper.take(), snapshot);
  EXPECT_NE(keeper.at(8), nullptr);
  EXPECT_EQ(keeper.at(7), nullptr);
}

TEST(PsModel, ASnapshotThatWaitedDoesNotBeginOnceAPieceHasGoneOn) {
  ModelUnderTest model(spec_of(70'000, Apply::at_clock, Combine::sum, "add"), 1, 2);
  for (uint64_t clock = 0; clock < 5; ++clock) {
    for (size_t piece : {0, 1}) {
      ASSERT_TRUE(model.push_piece(piece, {0, clock, clock + 1, 0, true, kNoRate}, 1));
    }
  }
  EXPECT_EQ(model->take_snapshot()->clock, 2U);
  EXPECT_EQ(model->take_snapshot(), nullptr);  // all are past 4
  for (size_t piece : {0, 1}) {
    ASSERT_TRUE(model.push_piece(piece, {0, 5, 6, 0, true, kNoRate}, 1));
  }
  EXPECT_EQ(model->take_snapshot()->clock, 6U);
}

TEST(PsModel, RowsAreAddedUpAndTheRestStays) {
  ModelSpec spec = spec_of(0, Apply::at_clock, Combine::sum, "add");
  spec.spaces[0] = {DType::f32, 8, 2, DType::f32};
  ModelUnderTest model(spec, 1);
  const std::vector<int64_t> numbers{3, 1, 3};
  const std::vector<float> values{1, 2, 10, 20, 100, 200};
  const Rows rows{0, numbers.data(), numbers.size()};
  const Push push{0, 0, 1, 0, false, kNoRate};
  const auto* wire = reinterpret_cast<const std::byte*>(values.data());
  ASSERT_TRUE(model->push_rows(0, push, rows, wire).value());
  ASSERT_TRUE(model->push_rows(0, push, rows, wire).value());  // again: it counts once
  model->tick(0, 1);
  const std::vector<int64_t> all{0, 1, 2, 3};
  std::vector<float> pulled(8);
  ASSERT_TRUE(
      model->pull_rows(0, 1, {0, all.data(), 4}, reinterpret_cast<std::byte*>(pulled.data()))
          .value());
  EXPECT_EQ(pulled, (std::vector<float>{0, 0, 10, 20, 0, 0, 101, 202}));
}

TEST(PsModel, TheMeanOfRowsIsOverTheWorkersThatCountedAtTheClock) {
  ModelSpec spec = spec_of(0, Apply::at_clock, Combine::mean, "add");
  spec.spaces[0] = {DType::f32, 8, 2, DType::f32};
  ModelUnderTest model(spec, 1);
  const int64_t row = 2;
  const std::vector<float> values{4, 6};
  ASSERT_TRUE(model
                  ->push_rows(0, {0, 0, 1, 0, false, kNoRate}, {0, &row, 1},
                              reinterpret_cast<const std::byte*>(values.data()))
                  .value());
  model->tick(0, 1);
  model->attach(1, 1, 2);  // comes when the clock is over
  std::vector<float> pulled(2);
  ASSERT_TRUE(
      model->pull_rows(0, 1, {0, &row, 1}, reinterpret_cast<std::byte*>(pulled.data())).value());
  EXPECT_EQ(pulled, values);
}

TEST(PsModel, TheLearningRateOfAClockDoesNotDependOnTheOrderOfArrival) {
  for (const bool is_reversed : {false, true}) {
    ModelUnderTest model(spec_of(3, Apply::at_clock, Combine::sum, "sgd"), 2);
    const std::vector<Push> pushes{{0, 0, 1, 0, true, 0.5}, {1, 0, 2, 0, true, 0.25}};
    for (const size_t i : {0, 1}) model.push_piece(0, pushes[is_reversed ? 1 - i : i], 4);
    EXPECT_EQ(model.pull(1), -2);
  }
}

TEST(PsModel, RowsThatDoNotExistAreRefused) {
  ModelSpec spec = spec_of(0, Apply::at_clock, Combine::sum, "add");
  spec.spaces[0] = {DType::f32, 8, 2, DType::f32};
  ModelUnderTest model(spec, 1);
  for (int64_t row : {int64_t{-1}, int64_t{4}, INT64_MAX}) {
    EXPECT_FALSE(model->check_rows(0, {0, &row, 1}).ok()) << row;
  }
}

// Workers push powers of a base, so that a sum tells who has pushed how often; each works at its
// own pace. What a pull returns must contain all pushes of clocks that its bound names, and with
// exact pulls nothing else.
TEST(PsModel, NoPullIsStalerThanItsBoundAndNoPushIsLost) {
  constexpr uint32_t kWorkers = 4;
  constexpr uint64_t kClocks = 60;
  for (int64_t staleness : {0, 1, 3}) {
    ModelUnderTest model(spec_of(1, Apply::at_clock, Combine::sum, "add"), kWorkers);
    std::vector<std::thread> workers;
    for (uint32_t worker = 0; worker < kWorkers; ++worker) {
      workers.emplace_back([&, worker] {
        std::mt19937 random(worker + 17 * static_cast<uint32_t>(staleness));
        for (uint64_t clock = 0; clock < kClocks; ++clock) {
          const float unit = 1.0F / static_cast<float>(1 << (2 * worker));
          const Push push{worker, clock, clock + 1, clock + 1, random() % 2 == 0, kNoRate};
          ASSERT_TRUE(model.push_piece(0, push, unit));
          for (uint32_t pause = random() % 4; pause > 0; --pause) std::this_thread::yield();
          model->tick(worker, clock + 1);
          const auto bound = static_cast<uint64_t>(staleness);
          const uint64_t needed = clock + 1 > bound ? clock + 1 - bound : 0;
          float sum = model.pull(needed);
          while (std::isnan(sum)) {
            std::this_thread::yield();
            sum = model.pull(needed);
          }
          const float per_clock = 1 + 1.0F / 4 + 1.0F / 16 + 1.0F / 64;
          ASSERT_GE(sum, per_clock * static_cast<float>(needed));
          if (staleness == 0) {
            ASSERT_EQ(sum, per_clock * static_cast<float>(needed));
          }
        }
      });
    }
    for (std::thread& worker : workers) worker.join();
    EXPECT_EQ(model.pull(kClocks), 1.328125F * kClocks);
    EXPECT_EQ(model->num_open_windows(), 0U);
  }
}

TEST(PsModelSpec, PiecesAreManyAndOfGoodSize) {
  const std::pair<uint64_t, size_t> cases[] = {
      {1'000'000, kMinPieceBytes}, {10'000'000, 9 * kPieceGrain}, {100'000'000, kMaxPieceBytes}};
  for (const auto& [count, expected_bytes] : cases) {
    const ModelSpec spec = spec_of(count, Apply::at_clock, Combine::mean, "sgd");
    EXPECT_EQ(pieces_of(spec, 0).front().stored_bytes(spec), expected_bytes) << count;
  }
}

TEST(PsModelSpec, ShardsAreEvenAndCoverEverything) {
  for (uint32_t servers : {1U, 2U, 3U, 7U}) {
    for (uint64_t count : {uint64_t{1}, uint64_t{5}, uint64_t{100'003}, uint64_t{9'000'001}}) {
      ModelSpec spec = spec_of(count, Apply::at_clock, Combine::mean, "sgd");
      spec.spaces.push_back({DType::f32, 10 * count, 10, DType::f32});
      spec.num_servers = servers;
      uint64_t dense = 0;
      uint64_t rows = 0;
      uint64_t next = 0;
      uint64_t most = 0;
      for (uint32_t shard = 0; shard < servers; ++shard) {
        most = std::max(most, shard_bytes(spec, shard));
        for (const Piece& piece : pieces_of(spec, shard)) {
          EXPECT_LE(piece.stored_bytes(spec), kMaxPieceBytes);
          (piece.space == 0 ? dense : rows) += piece.count;
          if (piece.space != 0) continue;
          EXPECT_EQ(piece.first, next);
          next += piece.count;
        }
      }
      EXPECT_EQ(dense, count);
      EXPECT_EQ(rows, 10 * count);
      const double mean = 4.0 * 11.0 * static_cast<double>(count) / servers;
      if (count > 100'000) {
        EXPECT_LE(static_cast<double>(most), 1.02 * mean);
      }
    }
  }
}

TEST(PsModelSpec, NamesWhatMakesNoSense) {
  ModelSpec spec = spec_of(5, Apply::at_clock, Combine::mean, "sgd");
  EXPECT_TRUE(check(spec).ok());
  spec.replicas = 1;
  EXPECT_FALSE(check(spec).ok());
  spec.num_servers = 2;
  EXPECT_TRUE(check(spec).ok());
  spec.options["speed"] = 3;
  EXPECT_NE(check(spec).message().find("speed"), std::string::npos);
  spec.options.clear();
  spec.spaces[0].dtype = spec.spaces[0].wire = DType::i32;
  EXPECT_FALSE(check(spec).ok());
  spec.rule = "add";
  EXPECT_TRUE(check(spec).ok());
}

TEST(PsWire, CommandsComeBackAsTheyWere) {
  Command command;
  command.kind = CommandKind::push_rows;
  command.model = 7;
  command.shard = 3;
  command.space = 1;
  command.clock = 1ull << 40;
  command.sequence = UINT64_MAX;
  command.staleness = 5;
  command.num_rows = 11;
  command.ends_clock = true;
  command.waits = true;
  command.ticket = 200;
  command.track = kNumTracks - 1;
  command.learning_rate = 0.5;
  command.lives[63] = 255;
  const Result<Command> decoded = decode_command(encode(command));
  ASSERT_TRUE(decoded.ok());
  EXPECT_EQ(encode(*decoded), encode(command));
  EXPECT_TRUE(decoded->ends_clock);
  EXPECT_TRUE(decoded->waits);
  EXPECT_EQ(decoded->ticket, 200);
  EXPECT_EQ(decoded->track, kNumTracks - 1);
  EXPECT_EQ(decoded->clock, command.clock);
  EXPECT_EQ(decoded->learning_rate, 0.5);
}

TEST(PsWire, WhatIsNoCommandIsRefused) {
  const CommandBytes good = encode(Command());
  for (size_t i = 0; i < 8; ++i) {
    CommandBytes bad = good;
    bad[i] ^= std::byte{0x40};
    EXPECT_FALSE(decode_command(bad).ok()) << i;
  }
  Command command;
  command.kind = CommandKind::pull;
  for (uint8_t track : {kNumTracks, kNoTrack}) {
    command.track = track;
    EXPECT_FALSE(decode_command(encode(command)).ok());
  }
  command.kind = CommandKind::clock;
  EXPECT_TRUE(decode_command(encode(command)).ok());
  AnswerBytes answer = encode(Answer{.sequence = 1, .version = 2});
  EXPECT_TRUE(decode_answer(answer).ok());
  answer[0] = std::byte{0};
  EXPECT_FALSE(decode_answer(answer).ok());
}

}  // namespace
}  // namespace dmlcomm::ps
