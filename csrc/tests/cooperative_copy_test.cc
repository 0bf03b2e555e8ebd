// Messages that both ends of a link copy together.
#include "transport/cooperative_copy.h"

#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "tests/memory_channel.h"
#include "tests/notes.h"
#include "transport/link.h"

namespace dmlcomm::transport {
namespace {

using tests::MemoryChannel;
using tests::Notes;

constexpr size_t kBytes = 1'000'003;
constexpr Tag kTag = point_to_point_tag(5);

class CooperativeCopyTest : public testing::Test {
 protected:
  CooperativeCopyTest()
      : a_(LinkOptions{0, 1, 42, 1, &notes_a_, &counters_}),
        b_(LinkOptions{1, 0, 42, 1, &notes_b_, &counters_}) {
    auto to_b = std::make_shared<MemoryChannel::Pipe>();
    auto to_a = std::make_shared<MemoryChannel::Pipe>();
    auto a = std::make_unique<MemoryChannel>(to_b, to_a, 1 << 20, true);
    auto b = std::make_unique<MemoryChannel>(to_a, to_b, 1 << 20, true);
    a->share(words_, 0);
    b->share(words_, 1);
    a_.attach(0, std::move(a));
    b_.attach(0, std::move(b));
  }

  struct Message {
    explicit Message(int seed) : data(kBytes), got(kBytes) {
      for (size_t i = 0; i < kBytes; ++i) data[i] = static_cast<std::byte>(i * 7 + i / 251 + seed);
      out.tag = in.tag = kTag;
      out.bytes = in.bytes = kBytes;
      out.data = data.data();
      in.destination = got.data();
    }
    std::vector<std::byte> data;
    std::vector<std::byte> got;
    SendRequest out;
    RecvRequest in;
  };

  // The receiver knows where the message lies.
  void offer(Message& message) {
    b_.recv(message.in);
    a_.send(message.out);
    a_.progress();
    b_.progress();
    ASSERT_TRUE(message.in.offered);
  }
  // One step of the receiver; true if the message is complete.
  bool take(Message& message) {
    bool moved = false;
    bool complete = false;
    EXPECT_TRUE(b_.take_offer(message.in, &moved, &complete).ok());
    b_.progress();
    return complete;
  }

  std::shared_ptr<MemoryChannel::Words> words_ = std::make_shared<MemoryChannel::Words>();
  RailCounters counters_;
  Notes notes_a_;
  Notes notes_b_;
  Link a_;
  Link b_;
};

TEST_F(CooperativeCopyTest, BothEndsCopyAPart) {
  Message message(1);
  offer(message);
  int steps = 1;
  for (; !take(message); ++steps) a_.progress();
  EXPECT_LT(steps, 9);  // alone it takes 10
  a_.progress();
  EXPECT_EQ(message.got, message.data);
  EXPECT_EQ(notes_a_.num_sent, 1);
  EXPECT_FALSE(a_.has_outstanding());
  EXPECT_FALSE(b_.has_outstanding());
}

TEST_F(CooperativeCopyTest, NobodyWaitsForASenderThatDoesSomethingElse) {
  Message message(2);
  offer(message);
  int steps = 1;
  while (!take(message)) ++steps;
  EXPECT_EQ(steps, 10);
  EXPECT_EQ(message.got, message.data);
  const auto before = message.got;
  a_.progress();  // finds the invitation and the receipt at once
  a_.progress();
  EXPECT_EQ(notes_a_.num_sent, 1);
  EXPECT_EQ(message.got, before);
}

TEST_F(CooperativeCopyTest, TheNextMessageBeginsWhenAllChunksAreTaken) {
  Message first(3);
  Message second(4);
  offer(first);
  offer(second);
  bool first_done = take(first);
  EXPECT_FALSE(take(second));
  EXPECT_FALSE(second.in.shared);
  bool second_done = false;
  for (int step = 0; step < 100 && !(first_done && second_done); ++step) {
    a_.progress();
    if (!first_done) first_done = take(first);
    if (!second_done) second_done = take(second);
  }
  EXPECT_EQ(first.got, first.data);
  EXPECT_EQ(second.got, second.data);
  a_.progress();
  EXPECT_EQ(notes_a_.num_sent, 2);
}

TEST_F(CooperativeCopyTest, AfterAReceiverHasGivenUpNothingIsWritten) {
  Message message(5);
  offer(message);
  take(message);
  b_.end(Status(StatusCode::aborted, "enough"));
  const auto before = message.got;
  a_.progress();
  EXPECT_EQ(message.got, before);
  EXPECT_EQ(words_->writing_to[0].load(), 0U);
}

TEST_F(CooperativeCopyTest, AMessageIsNotCompleteWithChunksOfASenderThatHasGivenUp) {
  Message message(5);
  offer(message);
  EXPECT_FALSE(take(message));
  a_.end(Status(StatusCode::aborted, "enough"));
  for (int step = 0; step < 100; ++step) {
    bool moved = false;
    bool complete = false;
    ASSERT_TRUE(b_.take_offer(message.in, &moved, &complete).ok());
    ASSERT_FALSE(complete);
  }
  b_.progress();
  EXPECT_EQ(notes_b_.failure.message(), "enough");
}

TEST_F(CooperativeCopyTest, ChunksThatNobodyAskedForAreRefused) {
  CooperativeCopy copy;
  EXPECT_EQ(copy.on_shared(7, 1).code(), StatusCode::protocol_error);
}

TEST_F(CooperativeCopyTest, ASenderCannotHaveWrittenMoreThanThereIs) {
  Message message(6);
  offer(message);
  CooperativeCopy copy;
  std::atomic<uint64_t> claims[2]{};
  std::atomic<uint32_t> writing_to{0};
  CooperativeMemory memory{claims[0], claims[1], writing_to, 1, [] { return true; }};
  ASSERT_TRUE(copy.open(memory, message.in));
  EXPECT_EQ(copy.on_shared(message.in.offer_id, 17).code(), StatusCode::protocol_error);
  EXPECT_TRUE(copy.on_shared(message.in.offer_id, 16).ok());
  EXPECT_TRUE(copy.complete(message.in));
}

TEST_F(CooperativeCopyTest, AReceiverHearsOfASenderThatWasStoppedWhileItWrote) {
  Message message(6);
  offer(message);
  std::atomic<uint64_t> claims[2]{};
  std::atomic<uint32_t> writing_to{0};
  for (const bool ends : {true, false}) {
    CooperativeCopy copy;
    CooperativeMemory memory{claims[0], claims[1], writing_to, 1, [ends] { return ends; }};
    EXPECT_TRUE(copy.give_up(memory)) << "nothing was being read";
    ASSERT_TRUE(copy.open(memory, message.in));
    EXPECT_EQ(copy.give_up(memory), ends);
  }
}

}  // namespace
}  // namespace dmlcomm::transport
