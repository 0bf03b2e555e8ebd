#include "transport/relay_preamble.h"

#include <arpa/inet.h>

#include <algorithm>
#include <cstring>
#include <sstream>

#include "base/check.h"
#include "base/str_cat.h"

namespace dmlcomm::transport {
namespace {

constexpr std::array<char, 4> kMagic{'D', 'M', 'L', 'R'};
constexpr uint8_t kVersion = 1;
constexpr size_t kWayBytesAt = 6;
constexpr size_t kSecretAt = 8;
// The longest numeric address of IPv6 has 45 characters; a port has 5.
constexpr size_t kMaxWayBytes = kMaxRelayHops * 52;

void put_start(std::byte* to, uint8_t what) {
  std::memcpy(to, kMagic.data(), kMagic.size());
  to[4] = std::byte{kVersion};
  to[5] = std::byte{what};
}

bool has_start(std::span<const std::byte> bytes) {
  return std::memcmp(bytes.data(), kMagic.data(), kMagic.size()) == 0 &&
         bytes[4] == std::byte{kVersion};
}

Status malformed() { return {StatusCode::protocol_error, "no request of a relay"}; }

bool parse_hop(const std::string& line, RelayHop* hop) {
  std::istringstream fields(line);
  fields >> hop->address >> hop->port;
  in6_addr address;  // large enough for both
  const bool is_numeric = inet_pton(AF_INET, hop->address.c_str(), &address) == 1 ||
                          inet_pton(AF_INET6, hop->address.c_str(), &address) == 1;
  return fields && fields.eof() && is_numeric && hop->port > 0;
}

}  // namespace

std::vector<std::byte> encode(const RelayPreamble& preamble) {
  std::string way;
  for (const RelayHop& hop : preamble.hops) way += str_cat(hop.address, " ", hop.port, "\n");
  DMLCOMM_CHECK(preamble.hops.size() <= kMaxRelayHops && way.size() <= kMaxWayBytes);
  std::vector<std::byte> bytes(kRelayHeaderBytes + way.size());
  put_start(bytes.data(), static_cast<uint8_t>(preamble.hops.size()));
  bytes[kWayBytesAt] = static_cast<std::byte>(way.size());
  bytes[kWayBytesAt + 1] = static_cast<std::byte>(way.size() >> 8);
  std::memcpy(bytes.data() + kSecretAt, preamble.secret.data(), preamble.secret.size());
  std::memcpy(bytes.data() + kRelayHeaderBytes, way.data(), way.size());
  return bytes;
}

Result<size_t> relay_preamble_bytes(std::span<const std::byte> header) {
  const size_t way_bytes = std::to_integer<size_t>(header[kWayBytesAt]) |
                           std::to_integer<size_t>(header[kWayBytesAt + 1]) << 8;
  if (!has_start(header) || way_bytes > kMaxWayBytes) return malformed();
  return kRelayHeaderBytes + way_bytes;
}

Result<RelayPreamble> decode_relay_preamble(std::span<const std::byte> bytes) {
  const Result<size_t> size = relay_preamble_bytes(bytes);
  if (!size.ok() || *size != bytes.size()) return malformed();
  RelayPreamble preamble;
  std::memcpy(preamble.secret.data(), bytes.data() + kSecretAt, preamble.secret.size());
  const auto way = bytes.subspan(kRelayHeaderBytes);
  std::istringstream lines(std::string(reinterpret_cast<const char*>(way.data()), way.size()));
  for (std::string line; std::getline(lines, line);) {
    RelayHop hop;
    if (preamble.hops.size() == kMaxRelayHops || !parse_hop(line, &hop)) return malformed();
    preamble.hops.push_back(std::move(hop));
  }
  const bool is_complete = way.empty() || way.back() == std::byte{'\n'};
  const size_t num_hops = std::to_integer<size_t>(bytes[5]);
  if (preamble.hops.empty() || preamble.hops.size() != num_hops || !is_complete) return malformed();
  return preamble;
}

RelayAnswerBytes encode(RelayAnswer answer) {
  RelayAnswerBytes bytes{};
  put_start(bytes.data(), static_cast<uint8_t>(answer));
  return bytes;
}

Status check_relay_answer(const RelayAnswerBytes& bytes) {
  if (has_start(bytes)) {
    switch (static_cast<RelayAnswer>(bytes[5])) {
      case RelayAnswer::connected: return Status();
      case RelayAnswer::refused: return {StatusCode::peer_lost, "refused, as a relay says"};
      case RelayAnswer::unreachable:
        return {StatusCode::io_error, "a relay does not reach the next host"};
    }
  }
  return {StatusCode::protocol_error, "no answer of a relay"};
}

}  // namespace dmlcomm::transport
