#include "transport/frame.h"

#include <bit>

#include "base/str_cat.h"

namespace dmlcomm::transport {
namespace {

static_assert(std::endian::native == std::endian::little,
              "the wire format is little-endian and headers are copied as they are");

constexpr size_t kChecksummedBytes = kHeaderBytes - sizeof(uint32_t);

// Multiply-and-rotate over 64-bit words, and the last 32 bits: every single-bit change alters the
// state because the multiplier is odd. A few nanoseconds, where CRC32 without hardware support
// costs a hundred. It detects damage; it is no protection against an attacker.
uint64_t mix(uint64_t state, uint64_t word) {
  return std::rotl((state ^ word) * 0xff51afd7ed558ccdu, 29);
}

uint32_t header_checksum(const std::byte* bytes) {
  uint64_t state = 0x9e3779b97f4a7c15u;
  size_t i = 0;
  for (; i + sizeof(uint64_t) <= kChecksummedBytes; i += sizeof(uint64_t)) {
    uint64_t word;
    std::memcpy(&word, bytes + i, sizeof(word));
    state = mix(state, word);
  }
  static_assert(kChecksummedBytes % sizeof(uint64_t) == sizeof(uint32_t));
  uint32_t last;
  std::memcpy(&last, bytes + i, sizeof(last));
  state = mix(state, last);
  return static_cast<uint32_t>(state ^ (state >> 32));
}

Status damaged(const char* field, uint64_t actual, uint64_t expected) {
  return Status(StatusCode::protocol_error,
                str_cat("frame header has ", field, " ", actual, ", expected ", expected));
}

bool is_known(FrameKind kind) { return kind <= FrameKind::credit; }

uint32_t max_payload_of(FrameKind kind) {
  switch (kind) {
    case FrameKind::hello: return sizeof(Hello);
    case FrameKind::data: return kMaxPayloadBytes;
    case FrameKind::abort: return kMaxReasonBytes;
    case FrameKind::offer: return kKeyBytes;
    default: return 0;
  }
}

}  // namespace

const char* to_string(FrameKind kind) {
  switch (kind) {
#define DMLCOMM_FRAME_KIND_NAME(name) \
  case FrameKind::name: return #name;
    DMLCOMM_FRAME_KINDS(DMLCOMM_FRAME_KIND_NAME)
#undef DMLCOMM_FRAME_KIND_NAME
  }
  return "unknown";
}

void encode_header(FrameHeader header, HeaderBytes& out) {
  std::memcpy(out.data(), &header, kHeaderBytes);
  const uint32_t checksum = header_checksum(out.data());
  std::memcpy(out.data() + kChecksummedBytes, &checksum, sizeof(checksum));
}

Result<FrameHeader> decode_header(const HeaderBytes& bytes, uint64_t job_id) {
  FrameHeader header;
  std::memcpy(static_cast<void*>(&header), bytes.data(), kHeaderBytes);
  if (header.magic != FrameHeader::kMagic) {
    return damaged("magic", header.magic, FrameHeader::kMagic);
  }
  if (header.version != FrameHeader::kVersion) {
    return damaged("version", header.version, FrameHeader::kVersion);
  }
  const uint32_t checksum = header_checksum(bytes.data());
  if (header.checksum != checksum) return damaged("checksum", header.checksum, checksum);
  if (header.job_id != job_id) return damaged("job id", header.job_id, job_id);
  if (!is_known(header.kind)) {
    return damaged("kind", static_cast<uint64_t>(header.kind),
                   static_cast<uint64_t>(FrameKind::credit));
  }
  if (header.payload_bytes > max_payload_of(header.kind)) {
    return damaged("payload length", header.payload_bytes, max_payload_of(header.kind));
  }
  if (header.kind == FrameKind::data &&
      (header.offset > header.message_bytes ||
       header.payload_bytes > header.message_bytes - header.offset)) {
    return damaged("payload end", header.offset + header.payload_bytes, header.message_bytes);
  }
  return header;
}

}  // namespace dmlcomm::transport
