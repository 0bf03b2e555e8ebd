#include "base/sha256.h"

#include <bit>
#include <cstdint>
#include <cstring>
#include <vector>

namespace dmlcomm {
namespace {

constexpr size_t kBlockBytes = 64;

// Fractional parts of the square roots of the first 8 primes, and of the cube roots of the
// first 64.
constexpr std::array<uint32_t, 8> kFirstState{0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                              0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
constexpr std::array<uint32_t, 64> kRounds{
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

uint32_t big_endian(const std::byte* bytes) {
  uint32_t value = 0;
  for (int i = 0; i < 4; ++i) value = value << 8 | std::to_integer<uint32_t>(bytes[i]);
  return value;
}

void add_block(std::array<uint32_t, 8>& state, const std::byte* block) {
  std::array<uint32_t, 64> w;
  for (size_t i = 0; i < 16; ++i) w[i] = big_endian(block + 4 * i);
  for (size_t i = 16; i < 64; ++i) {
    const uint32_t x = w[i - 15], y = w[i - 2];
    const uint32_t s0 = std::rotr(x, 7) ^ std::rotr(x, 18) ^ x >> 3;
    const uint32_t s1 = std::rotr(y, 17) ^ std::rotr(y, 19) ^ y >> 10;
    w[i] = w[i - 16] + s0 + w[i - 7] + s1;
  }
  auto [a, b, c, d, e, f, g, h] = state;
  for (size_t i = 0; i < 64; ++i) {
    const uint32_t s1 = std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25);
    const uint32_t t1 = h + s1 + ((e & f) ^ (~e & g)) + kRounds[i] + w[i];
    const uint32_t s0 = std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22);
    const uint32_t t2 = s0 + ((a & b) ^ (a & c) ^ (b & c));
    h = g, g = f, f = e, e = d + t1, d = c, c = b, b = a, a = t1 + t2;
  }
  const std::array<uint32_t, 8> more{a, b, c, d, e, f, g, h};
  for (size_t i = 0; i < 8; ++i) state[i] += more[i];
}

}  // namespace

Digest sha256(std::span<const std::byte> text) {
  std::vector<std::byte> padded(text.begin(), text.end());
  padded.push_back(std::byte{0x80});
  while (padded.size() % kBlockBytes != kBlockBytes - sizeof(uint64_t)) padded.emplace_back();
  const uint64_t bits = 8 * uint64_t{text.size()};
  for (int shift = 56; shift >= 0; shift -= 8)
    padded.push_back(static_cast<std::byte>(bits >> shift));
  std::array<uint32_t, 8> state = kFirstState;
  for (size_t i = 0; i < padded.size(); i += kBlockBytes) add_block(state, padded.data() + i);
  Digest digest;
  for (size_t i = 0; i < digest.size(); ++i) {
    digest[i] = static_cast<std::byte>(state[i / 4] >> (24 - 8 * (i % 4)));
  }
  return digest;
}

Digest hmac_sha256(std::span<const std::byte> key, std::span<const std::byte> text) {
  std::array<std::byte, kBlockBytes> block{};
  if (key.size() > block.size()) {
    const Digest shorter = sha256(key);
    std::memcpy(block.data(), shorter.data(), shorter.size());
  } else if (!key.empty()) {
    std::memcpy(block.data(), key.data(), key.size());
  }
  const auto with_pad = [&](std::byte pad, std::span<const std::byte> rest) {
    std::vector<std::byte> all;
    for (const std::byte of_key : block) all.push_back(of_key ^ pad);
    all.insert(all.end(), rest.begin(), rest.end());
    return sha256(all);
  };
  return with_pad(std::byte{0x5c}, with_pad(std::byte{0x36}, text));
}

bool same_digest(const Digest& a, const Digest& b) {
  std::byte difference{};
  for (size_t i = 0; i < a.size(); ++i) difference |= a[i] ^ b[i];
  return difference == std::byte{};
}

}  // namespace dmlcomm
