// The two copies of a shard: what they have in common, and what one gets of the other.
#include <gtest/gtest.h>

#include <vector>

#include "tests/model_under_test.h"

namespace dmlcomm::ps {
namespace {

using tests::kNoRate;
using tests::ModelUnderTest;
using tests::spec_of;

// What one server gets of the other one's pushes of worker 0.
std::vector<std::byte> lacking(ModelUnderTest& here, ModelUnderTest& there) {
  std::vector<std::byte> pushes;
  const auto next = there->copy_pushes(0, 0, here->known_pushes(0, 0, 0, 100), 0, 100, &pushes);
  EXPECT_TRUE(next.ok()) << next.status();
  return pushes;
}

// Two copies of a shard: the first is copied within a clock, with a push that comes to both later.
TEST(PsCopies, ACopyWithinAClockCountsEveryPushOnce) {
  for (const uint32_t replicas : {0, 1}) {
    ModelSpec spec = spec_of(3, Apply::at_clock, Combine::sum, "sgd");
    spec.replicas = replicas;
    spec.options = {{"lr", 1}, {"momentum", 1}};
    ModelUnderTest source(spec, 2), copy(spec, 2);
    for (uint32_t worker : {0, 1}) source->attach(worker, 0, 7);
    source.push_as(0, 0, 1, 1, true);
    source.push_as(1, 0, 1, 2, true);
    source.push_as(0, 1, 2, 10, true);
    EXPECT_EQ(source.pull(1), -3);
    std::vector<std::byte> bytes;
    EXPECT_EQ(source->copy(0, 0, 1, &bytes), 1U);
    ASSERT_TRUE(copy->take_copy(0, bytes).ok());
    copy->end_fill({{0, 0}, {1, 0}});
    for (uint32_t worker : {0, 1}) copy->attach(worker, 0, 7);
    copy.push_as(0, 1, 2, 10, true);
    copy.push_as(1, 0, 1, 2, true);
    EXPECT_EQ(copy.pull(1), -3);
    EXPECT_TRUE(std::isnan(copy.pull(2)));
    for (ModelUnderTest* model : {&source, &copy}) {
      model->push_as(1, 1, 2, 20, true);
      EXPECT_EQ(model->pull(2), -3 - 3 - 30);  // its momentum is in the copy, too
    }
  }
}

// A worker that dies has reached the two copies of a shard up to different pushes.
TEST(PsCopies, CopiesAreEqualOnceEachHasWhatTheOtherHadOfAWorkerThatHasGone) {
  for (const Apply apply : {Apply::at_clock, Apply::at_push}) {
    ModelSpec spec = spec_of(3, apply, Combine::sum, "sgd");
    spec.num_servers = 2;
    spec.replicas = 1;
    spec.options = {{"lr", 1}};
    ModelUnderTest ahead(spec, 2), behind(spec, 2);
    ahead.push_as(0, 0, 1, 1, true);
    behind.push_as(0, 0, 1, 1, true);
    // The other copy lacks this one, and its clock, and does not know that the first one is done.
    ahead.push_piece(0, {0, 1, 2, 2, true, kNoRate}, 10);
    for (ModelUnderTest* model : {&ahead, &behind}) model->push_as(1, 0, 1, 100, true);
    EXPECT_EQ(ahead.pull(1), apply == Apply::at_clock ? -101 : -111);
    for (int times : {1, 2}) {  // to ask again changes nothing
      ASSERT_TRUE(ahead->take_pushes(0, 0, lacking(ahead, behind)).ok()) << times;
      ASSERT_TRUE(behind->take_pushes(0, 0, lacking(behind, ahead)).ok()) << times;
    }
    for (ModelUnderTest* model : {&ahead, &behind}) {
      (*model)->drop(0);
      model->push_as(1, 1, 2, 1000, true);
      EXPECT_EQ(model->pull(2), -1111);
    }
  }
}

TEST(PsCopies, CopiesHaveEqualRowsOfAWorkerThatHasGone) {
  ModelSpec spec = spec_of(12, Apply::at_clock, Combine::sum, "add");
  spec.spaces[0].row_elements = 2;
  spec.num_servers = 1;
  ModelSpec copied = spec;
  copied.num_servers = 2;
  copied.replicas = 1;
  ModelUnderTest ahead(copied, 1), behind(copied, 1);
  const std::vector<int64_t> numbers{4, 0};
  const std::vector<float> values{1, 2, 3, 4};
  const Rows rows{0, numbers.data(), numbers.size()};
  const auto* wire = reinterpret_cast<const std::byte*>(values.data());
  EXPECT_TRUE(ahead->push_rows(0, {0, 0, 1, 0, false, kNoRate}, rows, wire).value());
  ASSERT_TRUE(behind->take_pushes(0, 0, lacking(behind, ahead)).ok());
  for (ModelUnderTest* model : {&ahead, &behind}) {
    (*model)->tick(0, 1);
    std::vector<float> out(4);
    ASSERT_TRUE((*model)->pull_rows(0, 1, rows, reinterpret_cast<std::byte*>(out.data())).value());
    EXPECT_EQ(out, values);
  }
}

TEST(PsCopies, PushesAreKeptForTheOtherCopyUntilTheWorkerHasTheirAcknowledgements) {
  ModelSpec spec = spec_of(3, Apply::at_clock, Combine::sum, "add");
  spec.num_servers = 2;
  spec.replicas = 1;
  ModelUnderTest model(spec, 1), nothing(spec, 1);
  const auto kept = [&] { return lacking(nothing, model).size(); };
  const size_t none = kept();
  model.push_as(0, 0, 1, 1, true);
  const size_t one = kept();
  EXPECT_GT(one, none);
  model.push_as(0, 1, 2, 1, true);
  EXPECT_EQ(kept() - one, one - none);
  model.push_piece(0, {0, 2, 3, 3, true, kNoRate}, 1);  // it repeats none before
  EXPECT_EQ(kept(), one);
  model->forget_pushes(0, 3);
  EXPECT_EQ(kept(), one);
  model->forget_pushes(0, 4);
  EXPECT_EQ(kept(), none);
  EXPECT_EQ(model.pull(3), 3);
}

TEST(PsCopies, PushesThatAreOnBothCopiesAreNotSent) {
  ModelSpec spec = spec_of(3, Apply::at_clock, Combine::sum, "add");
  spec.num_servers = 2;
  spec.replicas = 1;
  ModelUnderTest one(spec, 1), other(spec, 1);
  const size_t none = lacking(one, other).size();
  for (ModelUnderTest* model : {&one, &other}) model->push_as(0, 0, 1, 1, true);
  EXPECT_EQ(lacking(one, other).size(), none);
  other.push_as(0, 1, 2, 1, true);
  EXPECT_GT(lacking(one, other).size(), none);
  EXPECT_EQ(lacking(other, one).size(), none);
  std::vector<std::byte> known = one->known_pushes(0, 0, 0, 100), pushes;
  known.pop_back();
  EXPECT_FALSE(other->copy_pushes(0, 0, known, 0, 100, &pushes).ok());
}

// Of many pieces: in several messages, which are bounded.
TEST(PsCopies, NoPushIsSentBeyondThePiecesWhoseNumbersAreKnown) {
  ModelSpec spec = spec_of(3, Apply::at_clock, Combine::sum, "add");
  spec.spaces.push_back(spec.spaces[0]);
  spec.num_servers = 2;
  spec.replicas = 1;
  ModelUnderTest here(spec, 1), there(spec, 1);
  std::vector<std::byte> pushes;
  for (size_t piece : {0, 1}) {
    const std::vector<std::byte> known = here->known_pushes(0, 0, piece, 1);
    const Result<size_t> next = there->copy_pushes(0, 0, known, piece, 1'000'000, &pushes);
    EXPECT_EQ(next.value(), piece + 1);
  }
  EXPECT_TRUE(here->known_pushes(0, 0, 2, 1).empty());
  EXPECT_EQ(there->copy_pushes(0, 0, {}, 2, 1, &pushes).value(), 2U);
  EXPECT_TRUE(here->take_pushes(0, 0, pushes).ok());
}

TEST(PsCopies, PushesThatAreCutShortAreRefused) {
  ModelSpec spec = spec_of(3, Apply::at_clock, Combine::sum, "add");
  spec.num_servers = 2;
  spec.replicas = 1;
  ModelUnderTest source(spec, 2), copy(spec, 2);
  source.push_as(0, 0, 1, 1, true);
  std::vector<std::byte> bytes = lacking(copy, source);
  while (bytes.size() > 1) {
    bytes.pop_back();
    EXPECT_FALSE(copy->take_pushes(0, 0, bytes).ok()) << bytes.size();
  }
}

TEST(PsCopies, ACopyThatIsCutShortIsRefused) {
  ModelSpec spec = spec_of(3, Apply::at_clock, Combine::sum, "add");
  spec.replicas = 1;
  ModelUnderTest source(spec, 2), copy(spec, 2);
  source.push_as(0, 0, 1, 1, true);
  std::vector<std::byte> bytes;
  (void)source->copy(0, 0, 1, &bytes);
  while (bytes.size() > 1) {
    bytes.pop_back();
    EXPECT_FALSE(copy->take_copy(0, bytes).ok()) << bytes.size();
  }
}

// A worker without a proxy may be the last of a clock whose others have come in a sum.
// Pushes reach the copies in other orders, and sums of floats depend on the order.
TEST(PsCopies, ReplicasAddUpInTheSameOrder) {
  ModelSpec spec = spec_of(3, Apply::at_clock, Combine::sum, "add");
  spec.num_servers = 2;
  spec.replicas = 1;
  const std::vector<float> values{1e8F, 1, -1e8F};
  std::set<float> sums;
  std::vector<uint32_t> order{0, 1, 2};
  do {
    ModelUnderTest model(spec, 3);
    for (uint32_t worker : order) model.push(worker, 0, values[worker], true);
    sums.insert(model.pull(1));
  } while (std::next_permutation(order.begin(), order.end()));
  EXPECT_EQ(sums, std::set<float>{0});
}

// One that has closed the clock and gone since counts, whenever the copies do without it, and one
// that comes later does not.
TEST(PsCopies, BothCopiesTakeTheMeanOfRowsOverTheSameWorkers) {
  ModelSpec spec = spec_of(0, Apply::at_clock, Combine::mean, "add");
  spec.spaces[0] = {DType::f32, 8, 2, DType::f32};
  spec.num_servers = 2;
  spec.replicas = 1;
  ModelUnderTest late(spec, 3), early(spec, 3);
  const int64_t row = 2;
  const std::vector<float> values{6, 9};
  const Rows rows{0, &row, 1};
  for (ModelUnderTest* copy : {&late, &early}) {
    (*copy)->attach(0, 0, 1);
    (*copy)->attach(1, 0, 2);
    (*copy)->drop(2);  // it never came
    const auto* wire = reinterpret_cast<const std::byte*>(values.data());
    ASSERT_TRUE((*copy)->push_rows(0, {0, 0, 1, 0, false, kNoRate}, rows, wire).value());
  }
  late->tick(0, 1);  // this copy alone hears of it
  ASSERT_TRUE(early->take_pushes(0, 0, lacking(early, late)).ok());
  early->drop(0);
  late->tick(1, 1);
  early->tick(1, 1);
  late->drop(0);
  for (ModelUnderTest* copy : {&late, &early}) {
    std::vector<float> out(2);
    auto* to = reinterpret_cast<std::byte*>(out.data());
    ASSERT_TRUE((*copy)->pull_rows(0, 1, rows, to).value());
    EXPECT_EQ(out, (std::vector<float>{3, 4.5}));
  }
}

// The one that has gone comes again under its number, while the slow one still holds up one copy.
TEST(PsCopies, BothCopiesCountForTheMeanOfRowsWhoHasComeAgain) {
  ModelSpec spec = spec_of(0, Apply::at_clock, Combine::mean, "add");
  spec.spaces[0] = {DType::f32, 8, 2, DType::f32};
  ModelUnderTest late(spec, 2), early(spec, 2), filled(spec, 2);
  const int64_t row = 2;
  const std::vector<float> values{6, 9};
  const Rows rows{0, &row, 1};
  uint64_t begin = 0;
  for (ModelUnderTest* copy : {&late, &early}) {
    (*copy)->attach(0, 0, 1);
    (*copy)->attach(1, 0, 2);
    const auto* wire = reinterpret_cast<const std::byte*>(values.data());
    ASSERT_TRUE((*copy)->push_rows(0, {0, 0, 1, 0, false, kNoRate}, rows, wire).value());
    (*copy)->tick(0, 1);
    (*copy)->drop(0);
    if (copy == &early) (*copy)->tick(1, 1);
    const Held held = (*copy)->hold(0);
    EXPECT_TRUE(held.is_new);
    begin = std::max(begin, held.clock);
  }
  for (ModelUnderTest* copy : {&late, &early}) (*copy)->attach(0, begin, 3);
  std::vector<std::byte> bytes;
  (void)late->copy(0, 0, 1'000'000, &bytes);
  ASSERT_TRUE(filled->take_copy(0, bytes).ok());
  filled->end_fill({{0, begin}, {1, 0}});
  for (ModelUnderTest* copy : {&late, &filled}) (*copy)->tick(1, 1);
  for (ModelUnderTest* copy : {&late, &early, &filled}) {
    std::vector<float> out(2);
    auto* to = reinterpret_cast<std::byte*>(out.data());
    ASSERT_TRUE((*copy)->pull_rows(0, 1, rows, to).value());
    EXPECT_EQ(out, (std::vector<float>{3, 4.5}));
  }
}

// What the old one had closed is not taken for a clock of the new one.
TEST(PsCopies, NoCopyGoesBeyondTheClockAtWhichAWorkerComesAgain) {
  ModelSpec spec = spec_of(3, Apply::at_clock, Combine::sum, "add");
  spec.num_servers = 2;
  spec.replicas = 1;
  ModelUnderTest model(spec, 2);
  for (uint32_t worker : {0, 1}) model->attach(worker, 0, worker + 1);
  model.push_as(0, 0, 1, 1, true);
  model->drop(0);
  EXPECT_EQ(model->hold(0).clock, 0U);
  model.push_as(1, 0, 1, 10, true);
  EXPECT_TRUE(std::isnan(model.pull(1)));
  model->attach(0, 0, 3);
  model.push_as(0, 0, 1, 100, true);
  EXPECT_EQ(model.pull(1), 111);
}

// Also while the source still counts it, as others may have more of it.
TEST(PsCopies, ACopyTakesTheMeanOfRowsOverWorkersThatHaveGone) {
  ModelSpec spec = spec_of(0, Apply::at_clock, Combine::mean, "add");
  spec.spaces[0] = {DType::f32, 8, 2, DType::f32};
  const int64_t row = 2;
  const std::vector<float> values{6, 9};
  const Rows rows{0, &row, 1};
  for (const bool counts_there : {false, true}) {
    ModelUnderTest source(spec, 2), filled(spec, 2);
    source->attach(0, 0, 1);
    ASSERT_TRUE(source
                    ->push_rows(0, {0, 0, 1, 0, false, kNoRate}, rows,
                                reinterpret_cast<const std::byte*>(values.data()))
                    .value());
    source->tick(0, 1);
    if (!counts_there) source->drop(0);
    std::vector<std::byte> bytes;
    (void)source->copy(0, 0, 1'000'000, &bytes);
    ASSERT_TRUE(filled->take_copy(0, bytes).ok());
    filled->end_fill({{1, 0}});
    filled->tick(1, 1);
    std::vector<float> out(2);
    ASSERT_TRUE(filled->pull_rows(0, 1, rows, reinterpret_cast<std::byte*>(out.data())).value());
    EXPECT_EQ(out, (std::vector<float>{3, 4.5}));
  }
}

}  // namespace
}  // namespace dmlcomm::ps
