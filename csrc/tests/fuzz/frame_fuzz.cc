// Any 96 bytes: decode_header() must refuse them, or return a header whose lengths can be trusted.

#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "transport/frame.h"

using namespace dmlcomm::transport;  // NOLINT: a fuzz target is one function

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  FrameHeader header;
  const size_t bytes = size < kHeaderBytes ? size : kHeaderBytes;
  std::memcpy(static_cast<void*>(&header), data, bytes);
  HeaderBytes raw;
  std::memcpy(raw.data(), &header, kHeaderBytes);
  (void)decode_header(raw, header.job_id);
  // The same fields with what the checks before the lengths want: those must not be the only guard.
  header.magic = FrameHeader::kMagic;
  header.version = FrameHeader::kVersion;
  encode_header(header, raw);
  auto decoded = decode_header(raw, header.job_id);
  if (!decoded.ok()) return 0;
  if (decoded->payload_bytes > kMaxPayloadBytes) std::abort();
  if (decoded->kind == FrameKind::data &&
      decoded->offset + decoded->payload_bytes > decoded->message_bytes) {
    std::abort();
  }
  return 0;
}
