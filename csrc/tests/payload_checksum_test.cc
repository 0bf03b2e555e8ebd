// Links whose payloads have checksums, over channels that move a few bytes at a time or many.

#include <gtest/gtest.h>

#include <memory>
#include <random>

#include "tests/link_pair.h"

namespace dmlcomm::tests {
namespace {

class PayloadChecksumTest : public testing::TestWithParam<size_t> {
 protected:
  PayloadChecksumTest() {
    auto a = std::make_unique<MemoryChannel>(to_b_, to_a_, GetParam(), false);
    auto b = std::make_unique<MemoryChannel>(to_a_, to_b_, GetParam(), false);
    a->check_payloads();
    b->check_payloads();
    a_.attach(0, std::move(a));
    b_.attach(0, std::move(b));
  }

  // The message is on its way, and nothing else.
  void begin(Message& message) {
    b_.recv(message.in);
    b_.open(1, {});
    a_.send(message.out);
    a_.flush_deferred();
    while (a_.progress()) {
    }
  }
  void settle() {
    bool moved = true;
    while (moved) {
      moved = a_.progress();
      moved |= b_.progress();
    }
  }

  std::mt19937 random_{1};
  std::shared_ptr<MemoryChannel::Pipe> to_b_ = std::make_shared<MemoryChannel::Pipe>();
  std::shared_ptr<MemoryChannel::Pipe> to_a_ = std::make_shared<MemoryChannel::Pipe>();
  RailCounters counters_;
  Notes notes_a_, notes_b_;
  Link a_{LinkOptions{0, 1, kJob, 1, &notes_a_, &counters_}};
  Link b_{LinkOptions{1, 0, kJob, 1, &notes_b_, &counters_}};
};

// The smallest cuts headers and checksums into pieces.
INSTANTIATE_TEST_SUITE_P(Bytes, PayloadChecksumTest, testing::Values(3, 1000, 1 << 20));

TEST_P(PayloadChecksumTest, IntactMessagesArrive) {
  for (size_t bytes : {0, 1, 3000, 100'000, 3'000'000}) {
    Message message(collective_tag(1, 0, static_cast<uint32_t>(bytes)),
                    random_bytes(bytes, random_));
    begin(message);
    settle();
    EXPECT_EQ(message.got, message.data) << bytes;
  }
  EXPECT_EQ(notes_b_.num_arrived, 5);
  EXPECT_EQ(b_.state(), Link::State::up) << notes_b_.failure;
}

// So many bytes before the end: in the checksum itself, and in the payload.
class DamageTest : public PayloadChecksumTest {
 protected:
  void expect_damage_is_found(size_t from_end) {
    Message message(collective_tag(1, 0, 0), random_bytes(3000, random_));
    begin(message);
    ASSERT_EQ(to_b_->bytes.size(), kHeaderBytes + 3000 + kTrailerBytes);
    to_b_->bytes[to_b_->bytes.size() - from_end] ^= std::byte{4};
    settle();
    EXPECT_EQ(notes_b_.num_arrived, 0);
    EXPECT_EQ(b_.state(), Link::State::failed);
    const std::string& text = notes_b_.failure.message();
    EXPECT_NE(text.find("data frame of 3000 bytes, at 0 of a message of 3000"), std::string::npos)
        << text;
    EXPECT_NE(text.find("came damaged by"), std::string::npos) << text;
  }
};
INSTANTIATE_TEST_SUITE_P(Bytes, DamageTest, testing::Values(3, 1000, 1 << 20));

TEST_P(DamageTest, OfTheChecksumFailsTheLink) { expect_damage_is_found(1); }
TEST_P(DamageTest, OfTheLastByteFailsTheLink) { expect_damage_is_found(5); }
TEST_P(DamageTest, OfAnyBitFailsTheLinkAndTheMessageDoesNotArrive) { expect_damage_is_found(2000); }

}  // namespace
}  // namespace dmlcomm::tests
