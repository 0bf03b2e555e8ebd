// The instruction gives a result after three cycles, and begins one each cycle. So three blocks are
// worked on at a time, and their checksums are put together: that of a block counts as if as many
// zeros followed as the blocks behind it have bytes. The checksum is linear, so this step is a
// 32 x 32 matrix over bits for one size of blocks, here as four tables by byte.

#include "base/crc32c.h"

#include <array>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_acle.h>
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

namespace dmlcomm {
namespace {

constexpr uint32_t kPolynomial = 0x82f63b78;  // its bits reversed
// Small enough that frames of 16 KiB gain, large enough that putting together costs little.
constexpr size_t kInterleavedBytes = 1024;

using Table = std::array<uint32_t, 256>;

constexpr uint32_t add_zero_bits(uint32_t state, int num_bits) {
  for (int i = 0; i < num_bits; ++i) state = state >> 1 ^ ((state & 1) != 0 ? kPolynomial : 0);
  return state;
}

// Table k: a byte, and k zeros behind it.
constexpr std::array<Table, 8> make_byte_tables() {
  std::array<Table, 8> tables{};
  for (uint32_t byte = 0; byte < 256; ++byte) tables[0][byte] = add_zero_bits(byte, 8);
  for (size_t k = 1; k < 8; ++k) {
    for (size_t byte = 0; byte < 256; ++byte) {
      const uint32_t before = tables[k - 1][byte];
      tables[k][byte] = before >> 8 ^ tables[0][before & 0xff];
    }
  }
  return tables;
}

constexpr std::array<Table, 8> kByteTables = make_byte_tables();

uint64_t load(const std::byte* from) {
  uint64_t word;
  std::memcpy(&word, from, sizeof(word));
  return word;
}

uint32_t add_by_tables(uint32_t state, const std::byte* data, size_t bytes) {
  for (; bytes >= 8; data += 8, bytes -= 8) {
    const uint64_t word = load(data) ^ state;
    state = 0;
    for (size_t k = 0; k < 8; ++k) state ^= kByteTables[7 - k][word >> 8 * k & 0xff];
  }
  for (; bytes > 0; ++data, --bytes) {
    state = state >> 8 ^ kByteTables[0][(state ^ static_cast<uint32_t>(*data)) & 0xff];
  }
  return state;
}

#if defined(__x86_64__) || defined(__aarch64__)

#if defined(__x86_64__)
#define DMLCOMM_WITH_CRC __attribute__((target("sse4.2")))
DMLCOMM_WITH_CRC inline uint32_t add_word(uint32_t state, uint64_t word) {
  return static_cast<uint32_t>(_mm_crc32_u64(state, word));
}
#else
#define DMLCOMM_WITH_CRC __attribute__((target("+crc")))
DMLCOMM_WITH_CRC inline uint32_t add_word(uint32_t state, uint64_t word) {
  return __crc32cd(state, word);
}
#endif

// Table k: byte k of a state, and kInterleavedBytes zeros behind it.
std::array<Table, 4> make_block_tables() {
  std::array<Table, 4> tables{};
  for (size_t k = 0; k < 4; ++k) {
    for (uint32_t byte = 0; byte < 256; ++byte) {
      tables[k][byte] = add_zero_bits(byte << 8 * k, 8 * kInterleavedBytes);
    }
  }
  return tables;
}

DMLCOMM_WITH_CRC uint32_t add_by_instruction(uint32_t state, const std::byte* data, size_t bytes) {
  static const std::array<Table, 4> kBehind = make_block_tables();
  const auto behind = [](uint32_t of) {
    return kBehind[0][of & 0xff] ^ kBehind[1][of >> 8 & 0xff] ^ kBehind[2][of >> 16 & 0xff] ^
           kBehind[3][of >> 24];
  };
  for (; bytes >= 3 * kInterleavedBytes;
       data += 3 * kInterleavedBytes, bytes -= 3 * kInterleavedBytes) {
    uint32_t second = 0, third = 0;
    for (size_t i = 0; i < kInterleavedBytes; i += 8) {
      state = add_word(state, load(data + i));
      second = add_word(second, load(data + kInterleavedBytes + i));
      third = add_word(third, load(data + 2 * kInterleavedBytes + i));
    }
    state = behind(behind(state) ^ second) ^ third;
  }
  for (; bytes >= 8; data += 8, bytes -= 8) state = add_word(state, load(data));
  return add_by_tables(state, data, bytes);
}

#endif

}  // namespace

bool has_crc32c_instruction() {
#if defined(__x86_64__)
  static const bool has = __builtin_cpu_supports("sse4.2") != 0;
#elif defined(__aarch64__)
  static const bool has = (getauxval(AT_HWCAP) & HWCAP_CRC32) != 0;
#else
  static const bool has = false;
#endif
  return has;
}

uint32_t crc32c_by_tables(uint32_t before, const void* data, size_t bytes) {
  return ~add_by_tables(~before, static_cast<const std::byte*>(data), bytes);
}

uint32_t crc32c(uint32_t before, const void* data, size_t bytes) {
#if defined(__x86_64__) || defined(__aarch64__)
  if (has_crc32c_instruction()) {
    return ~add_by_instruction(~before, static_cast<const std::byte*>(data), bytes);
  }
#endif
  return crc32c_by_tables(before, data, bytes);
}

}  // namespace dmlcomm
