// SHA-256 (FIPS 180-4) and HMAC-SHA-256 (RFC 2104), for handshakes: a few short texts per
// connection. Pure; any thread may call.
#pragma once

#include <array>
#include <cstddef>
#include <span>

namespace dmlcomm {

using Digest = std::array<std::byte, 32>;

Digest sha256(std::span<const std::byte> text);
Digest hmac_sha256(std::span<const std::byte> key, std::span<const std::byte> text);

// Takes a time that does not tell where two digests differ.
bool same_digest(const Digest& a, const Digest& b);

}  // namespace dmlcomm
