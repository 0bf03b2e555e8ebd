#include "transport/early_messages.h"

#include <gtest/gtest.h>

namespace dmlcomm::transport {
namespace {

FrameHeader header_with(Tag tag) {
  FrameHeader header;
  header.tag = tag;
  return header;
}

std::vector<std::byte> one_byte(int value) { return {static_cast<std::byte>(value)}; }

void add(EarlyMessages& early, Tag tag, int value) {
  std::vector<std::byte> bytes = one_byte(value);
  early.add(header_with(tag), bytes, static_cast<uint64_t>(value));
  EXPECT_TRUE(bytes.empty());
}

TEST(EarlyMessagesTest, TheOldestOfATagIsTakenFirst) {
  EarlyMessages early;
  add(early, 7, 1);
  add(early, 8, 2);
  add(early, 7, 3);
  EXPECT_EQ(early.oldest(7)->order, 1u);
  EXPECT_EQ(early.take(7)->bytes, one_byte(1));
  EXPECT_EQ(early.oldest(7)->order, 3u);
  EXPECT_EQ(early.take(8)->bytes, one_byte(2));
  EXPECT_EQ(early.take(7)->bytes, one_byte(3));
  EXPECT_EQ(early.take(7), nullptr);
  EXPECT_EQ(early.oldest(8), nullptr);
}

TEST(EarlyMessagesTest, MemoryOfATakenMessageServesTheNextOne) {
  EarlyMessages early;
  add(early, 7, 1);
  const EarlyMessage* const first = early.take(7);
  add(early, 9, 2);
  EXPECT_EQ(early.oldest(9), first);
  EXPECT_EQ(early.oldest(9)->header.tag, 9u);
  EXPECT_EQ(early.oldest(7), nullptr);
  EXPECT_EQ(early.take(9)->bytes, one_byte(2));
}

}  // namespace
}  // namespace dmlcomm::transport
