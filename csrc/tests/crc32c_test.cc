#include "base/crc32c.h"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

namespace dmlcomm {
namespace {

std::vector<std::byte> pattern(size_t bytes) {
  std::vector<std::byte> data(bytes);
  for (size_t i = 0; i < bytes; ++i) data[i] = static_cast<std::byte>(i * i * 31 + 7 * i);
  return data;
}

// Those of RFC 3720, and the usual one of nine digits.
TEST(Crc32c, IsThatOfTheStandard) {
  const std::vector<std::byte> zeros(32), ones(32, std::byte{0xff});
  for (const Crc32cWay& of : crc32c_ways()) {
    EXPECT_EQ(of(0, nullptr, 0), 0u) << of.name;
    EXPECT_EQ(of(0, "123456789", 9), 0xe3069283u) << of.name;
    EXPECT_EQ(of(0, zeros.data(), 32), 0x8a9136aau) << of.name;
    EXPECT_EQ(of(0, ones.data(), 32), 0x62a8ab43u) << of.name;
  }
}

// Around their words, vectors and blocks, from any place in memory.
TEST(Crc32c, AllWaysAgree) {
  const std::vector<std::byte> data = pattern(20'000);
  const std::vector<Crc32cWay> ways = crc32c_ways();
  ASSERT_EQ(ways.back().name, "tables");
  for (size_t block : {0, 8, 256, 512, 768, 1024, 3072, 6144, 18'432}) {
    for (int more = -9; more <= 9; ++more) {
      if (static_cast<int>(block) + more < 0) continue;
      const size_t bytes = block + static_cast<size_t>(more);
      for (size_t begin : {0, 1, 5}) {
        const uint32_t expected = ways.back()(1, data.data() + begin, bytes);
        for (const Crc32cWay& way : ways) {
          EXPECT_EQ(way(1, data.data() + begin, bytes), expected) << way.name << ' ' << bytes;
        }
      }
    }
  }
}

TEST(Crc32c, GoesOnWhereItStopped) {
  const std::vector<std::byte> data = pattern(10'000);
  const uint32_t whole = crc32c(0, data.data(), data.size());
  for (size_t first : {1, 7, 3072, 9999}) {
    const uint32_t begun = crc32c(0, data.data(), first);
    EXPECT_EQ(crc32c(begun, data.data() + first, data.size() - first), whole) << first;
  }
}

}  // namespace
}  // namespace dmlcomm
