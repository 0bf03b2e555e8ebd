// The wire header: exact bytes, and what decode_header() refuses.

#include <gtest/gtest.h>

#include <cstring>
#include <string>

#include "transport/frame.h"

namespace dmlcomm::transport {
namespace {

constexpr uint64_t kJob = 0x1122334455667788;

FrameHeader example() {
  FrameHeader header;
  header.kind = FrameKind::data;
  header.ticket = 5;
  header.job_id = kJob;
  header.source = 3;
  header.payload_bytes = 1024;
  header.tag = collective_tag(17, 2, 9);
  header.id = 6;
  header.offset = 2048;
  header.message_bytes = 4096;
  header.op = {0, 10, 1, 0, 0, 1024};
  header.report.add_rate(0, 200e6);
  header.report.add_rate(1, 220e6);
  header.report.add_round_trip(100);
  header.report.set_time(1e-3);
  return header;
}

HeaderBytes encode(const FrameHeader& header) {
  HeaderBytes bytes;
  encode_header(header, bytes);
  return bytes;
}

std::string hex(const HeaderBytes& bytes) {
  std::string text;
  for (std::byte b : bytes) {
    char digits[3];
    std::snprintf(digits, sizeof(digits), "%02x", std::to_integer<unsigned>(b));
    text += digits;
  }
  return text;
}

// docs/wire-format.md shows the same bytes.
TEST(FrameTest, BytesAreAsDocumented) {
  EXPECT_EQ(hex(encode(example())),
            "444d4c43"  // magic "DMLC"
            "06"
            "01"
            "0500"              // version, kind, ticket
            "8877665544332211"  // job id
            "03000000"
            "00040000"          // source, payload bytes
            "0900008108000000"  // tag: sequence 17, stream 2, index 9
            "0600000000000000"  // id
            "0008000000000000"  // offset
            "0010000000000000"  // message bytes
            "000a010000000000"
            "0004000000000000"  // op: all_reduce, f32, avg, root 0, 1024 elements
            "595aff"            // report: rates of two rails,
            "ffffffffff"        // none of others
            "c9ff2735d7ca0000"  // round trip, tickets, shortest and longest time
            "0000000000000000"
            "0000000000000000"
            "00000000"
            "6272be26");
}

TEST(FrameTest, DecodesWhatWasEncoded) {
  const FrameHeader header = example();
  Result<FrameHeader> decoded = decode_header(encode(header), kJob);
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  EXPECT_EQ(decoded->tag, header.tag);
  EXPECT_EQ(decoded->payload_bytes, header.payload_bytes);
  EXPECT_EQ(decoded->op, header.op);
}

TEST(FrameTest, EverySingleBitErrorIsNoticed) {
  const HeaderBytes good = encode(example());
  for (size_t bit = 0; bit < 8 * kHeaderBytes; ++bit) {
    HeaderBytes bad = good;
    bad[bit / 8] ^= static_cast<std::byte>(1u << (bit % 8));
    EXPECT_FALSE(decode_header(bad, kJob).ok()) << "bit " << bit;
  }
}

TEST(FrameTest, RefusalsNameTheField) {
  const auto refusal = [](const FrameHeader& header, uint64_t job) {
    return decode_header(encode(header), job).status().message();
  };
  EXPECT_NE(refusal(example(), kJob + 1).find("job id"), std::string::npos);
  FrameHeader header = example();
  header.version = 9;
  EXPECT_NE(refusal(header, kJob).find("version 9"), std::string::npos);
  header = example();
  header.kind = static_cast<FrameKind>(77);
  EXPECT_NE(refusal(header, kJob).find("kind 77"), std::string::npos);
  header = example();
  header.payload_bytes = kMaxPayloadBytes + 1;
  EXPECT_NE(refusal(header, kJob).find("payload length"), std::string::npos);
  header = example();
  header.offset = 4000;
  EXPECT_NE(refusal(header, kJob).find("payload end"), std::string::npos);
  header = example();
  header.offset = UINT64_MAX - 100;
  EXPECT_NE(refusal(header, kJob).find("payload end"), std::string::npos);
  header = example();
  header.kind = FrameKind::heartbeat;
  EXPECT_NE(refusal(header, kJob).find("payload length"), std::string::npos);
}

TEST(FrameTest, TagsKeepTheirParts) {
  const Tag tag = collective_tag(0xffffffff, 255, kMaxTagIndex);
  EXPECT_FALSE(is_point_to_point(tag));
  EXPECT_EQ(sequence_of(tag), 0xffffffffu);
  EXPECT_TRUE(is_point_to_point(point_to_point_tag(0xffffffff)));
  EXPECT_NE(collective_tag(1, 0, 1), collective_tag(1, 1, 0));
}

}  // namespace
}  // namespace dmlcomm::transport
