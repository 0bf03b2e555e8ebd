// The wire header, in front of every payload on every channel. See docs/wire-format.md.
//
// 112 bytes, little-endian, reserved bytes zero. The checksum covers the header, so that a length
// can be trusted before the payload is there. decode_header() trusts nothing: a header that is
// damaged, of another version or of another job is an error, and the connection is closed by its
// owner.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "base/dtype.h"
#include "base/sha256.h"
#include "base/status.h"
#include "transport/rank_report.h"

namespace dmlcomm::transport {

// Which messages belong together. One comment draws the 64 bits; nobody else shifts them.
//
//   63    62........31   30......23   22...........0
//   p2p   sequence (32)  stream (8)   index (23)       collectives, p2p = 0
//   p2p   0 .......................   user tag (32)    point-to-point, p2p = 1
//
// index counts the messages from one rank to another inside one stream of one operation.
using Tag = uint64_t;

constexpr int kTagSequenceShift = 31;
constexpr int kTagStreamShift = 23;
constexpr Tag kTagPointToPoint = Tag{1} << 63;
constexpr uint32_t kMaxTagIndex = (1u << kTagStreamShift) - 1;

constexpr Tag collective_tag(uint32_t sequence, uint32_t stream, uint32_t index) {
  return Tag{sequence} << kTagSequenceShift | Tag{stream & 0xff} << kTagStreamShift |
         Tag{index & kMaxTagIndex};
}
constexpr Tag point_to_point_tag(uint32_t user_tag) { return kTagPointToPoint | user_tag; }
constexpr bool is_point_to_point(Tag tag) { return (tag & kTagPointToPoint) != 0; }
constexpr uint32_t sequence_of(Tag tag) { return static_cast<uint32_t>(tag >> kTagSequenceShift); }
// The number of which `low` are the low 32 bits and that is nearest to `near`, but not below 0.
constexpr uint64_t widen_sequence(uint32_t low, uint64_t near) {
  const auto distance = static_cast<int32_t>(low - static_cast<uint32_t>(near));
  const int64_t wide = static_cast<int64_t>(near) + distance;
  return wide < 0 ? low : static_cast<uint64_t>(wide);
}

// The sender's view of the operation of a frame. Ranks that disagree get an error.
struct OpInfo {
  uint8_t kind = 0;       // schedule::OpKind
  uint8_t dtype = 0;      // DType; for data movement 1 + DType where it is known, else 0
  uint8_t reduce_op = 0;  // ReduceOp; 0 for data movement
  uint8_t algorithm = 0;  // number of the algorithm; 0 where there is no choice
  uint32_t root = 0;
  uint64_t count = 0;  // elements (bytes for data movement); 0 where ranks need not agree

  bool operator==(const OpInfo&) const = default;
};
static_assert(sizeof(OpInfo) == 16);

// One list makes enum and names.
//   hello         first frame of a connection; payload is a Hello
//   data          a part of a message
//   offer         a message that stays in the sender's memory at `offset`; payload: a key, or none
//   ack           the message of the offer with this `id` has been read
//   open          the sender of this frame has begun operation `tag`, large data may come
//   request       a message is waiting that may not be sent unasked
//   grant         the request with this `id` may send
//   heartbeat     nothing to say, but alive
//   abort         the communicator has failed; `id` is the status code, payload the reason
//   goodbye       the peer leaves in good order
//   receipt       carries `received` where nothing else does
//   rail_lost     the sender has given up connection `offset` of lane `id`
//   share         the sender of the offer with this `id` may write parts of it to `offset`
//   shared        `offset` chunks of the message with this `id` have been written
//   credit        small messages that cost `offset` in all have met their receives
#define DMLCOMM_FRAME_KINDS(X) \
  X(hello)                     \
  X(data)                      \
  X(offer)                     \
  X(ack)                       \
  X(open)                      \
  X(request)                   \
  X(grant) X(heartbeat) X(abort) X(goodbye) X(receipt) X(rail_lost) X(share) X(shared) X(credit)

enum class FrameKind : uint8_t {
#define DMLCOMM_FRAME_KIND_ENUM(name) name,
  DMLCOMM_FRAME_KINDS(DMLCOMM_FRAME_KIND_ENUM)
#undef DMLCOMM_FRAME_KIND_ENUM
};

const char* to_string(FrameKind kind);

struct FrameHeader {
  uint32_t magic = kMagic;
  uint8_t version = kVersion;
  FrameKind kind = FrameKind::data;
  uint16_t ticket = 0;         // messages: 1 + that of their operation; 0: none
  uint64_t job_id = 0;         // from the rendezvous; the same on all ranks of a communicator
  uint32_t source = 0;         // rank of the sender
  uint32_t payload_bytes = 0;  // bytes that follow this header
  Tag tag = 0;
  uint64_t id = 0;             // sender's number of the message: offer/ack, request/grant
  uint64_t offset = 0;         // data: position in the message; offer: address at the sender
  uint64_t message_bytes = 0;  // whole message
  OpInfo op;
  RankReport report;  // data and offers of collectives
  // The place of this frame among all of its link from 1 on, and how many such frames the sender
  // has read from this lane. 0: it is not repeated when its lane dies; inside a host all are so.
  uint64_t number = 0;
  uint64_t received = 0;
  uint32_t awaits_receipt = 0;  // 1: the sender keeps a request waiting until this frame is read
  uint32_t checksum = 0;        // of all bytes before

  static constexpr uint32_t kMagic = 0x434c4d44;  // "DMLC"
  static constexpr uint8_t kVersion = 6;
};
constexpr size_t kHeaderBytes = 112;
static_assert(sizeof(FrameHeader) == kHeaderBytes, "the wire header has no padding");

// Payload of one data frame at most: large enough to amortise a system call (one TCP stream on
// loopback gains up to 1 MiB), small enough that a heartbeat behind it is not late.
constexpr uint32_t kMaxPayloadBytes = 1u << 20;
// Behind each payload of a connection with checksums: its CRC-32C.
constexpr size_t kTrailerBytes = 4;
// Payload of an abort frame at most; longer reasons are cut.
constexpr uint32_t kMaxReasonBytes = 4096;
// Payload of an offer whose transport needs a key (remote_memory.h).
constexpr uint32_t kKeyBytes = 8;

using HeaderBytes = std::array<std::byte, kHeaderBytes>;

// Fills in the checksum and writes the bytes.
void encode_header(FrameHeader header, HeaderBytes& out);

// Fails with `protocol_error` that says which field was wrong. `job_id` is what we expect.
Result<FrameHeader> decode_header(const HeaderBytes& bytes, uint64_t job_id);

// Payload of the first two frames of either side; see handshake.h.
struct Hello {
  std::array<std::byte, 16> challenge{};  // random, by the side that sends this frame
  Digest proof{};                         // by the job's secret, of all hellos up to this one
  uint32_t rank = 0;
  uint32_t num_ranks = 0;
  uint16_t lane = 0;            // of the link; rail i modulo the rails
  uint8_t kind = 0;             // kHello...
  uint8_t checks_payloads = 0;  // 1: asks for checksums; if either side does, both have them
  uint32_t pid = 0;
  uint64_t nonce_address = 0;  // inside a host: where the peer may try to read...
  uint64_t nonce = 0;          // ...this value with process_vm_readv
  uint64_t connection = 0;     // number of this one, by the rank that connects
};
static_assert(sizeof(Hello) == 88);

constexpr uint8_t kHelloRequest = 0;
constexpr uint8_t kHelloWelcome = 1;
constexpr uint8_t kHelloYield = 2;      // "my own connection to you wins"
constexpr uint8_t kHelloChallenge = 3;  // to a request
constexpr uint8_t kHelloConfirm = 4;    // of the one who requests; then comes welcome or yield

}  // namespace dmlcomm::transport
