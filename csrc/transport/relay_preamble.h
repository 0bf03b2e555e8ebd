// What a rank says to another one that shall relay a connection, before the hello, and the answer.
//
//   preamble := magic "DMLR", version (1 byte), number of hops (1), bytes of the way (2), secret
//               (16), and the way: a line "address port" for each hop that follows
//   answer   := magic "DMLR", version (1), RelayAnswer (1), zero (2)
//
// Each relay takes the first hop off the way and passes the rest on; the last hop is the listener
// that is wanted, which sees an ordinary connection. The answer is given once that is connected, or
// by the relay that cannot go on. Numbers are little-endian.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"

namespace dmlcomm::transport {

struct RelayHop {
  std::string address;  // numeric
  uint16_t port = 0;
  bool operator==(const RelayHop&) const = default;
};

struct RelayPreamble {
  std::array<std::byte, 16> secret{};  // admits the connection to the relay
  std::vector<RelayHop> hops;
};

constexpr size_t kRelayHeaderBytes = 24;
constexpr size_t kMaxRelayHops = 16;

std::vector<std::byte> encode(const RelayPreamble& preamble);
// Of the whole, as its header says.
Result<size_t> relay_preamble_bytes(std::span<const std::byte> header);
Result<RelayPreamble> decode_relay_preamble(std::span<const std::byte> bytes);

enum class RelayAnswer : uint8_t {
  connected,
  refused,      // nobody listens at the end of the way
  unreachable,  // the next hop, or one after it
};
constexpr size_t kRelayAnswerBytes = 8;
using RelayAnswerBytes = std::array<std::byte, kRelayAnswerBytes>;

RelayAnswerBytes encode(RelayAnswer answer);
// OK for `connected`; `peer_lost` for `refused`.
Status check_relay_answer(const RelayAnswerBytes& bytes);

}  // namespace dmlcomm::transport
