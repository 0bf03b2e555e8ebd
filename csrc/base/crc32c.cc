// Three ways, by what the CPU has:
//
//  - tables: a byte at a time by one table, eight at a time by eight of them.
//  - instruction: it gives a result after three cycles, and begins one each cycle. So three blocks
//    are worked on at a time, and their checksums are put together: that of a block counts as if as
//    many zeros followed as the blocks behind it have bytes. The checksum is linear, so this step
//    is a 32 x 32 matrix over bits for one size of blocks, here as four tables by byte.
//  - folding: 64-byte vectors as polynomials. One that lies D bits before another one may be added
//    to it if it is multiplied by x^D, of which the remainder is enough: per 128 bits, two products
//    of 64 x 32 bits. So 256 bytes become 16, whose checksum the instruction computes (Gopal and
//    others, Fast CRC computation for generic polynomials using PCLMULQDQ, Intel 2009).

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
bool has_instruction() { return __builtin_cpu_supports("sse4.2") != 0; }
#else
#define DMLCOMM_WITH_CRC __attribute__((target("+crc")))
DMLCOMM_WITH_CRC inline uint32_t add_word(uint32_t state, uint64_t word) {
  return __crc32cd(state, word);
}
bool has_instruction() { return (getauxval(AT_HWCAP) & HWCAP_CRC32) != 0; }
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

#if defined(__x86_64__)

#define DMLCOMM_WITH_FOLDING __attribute__((target("sse4.2,pclmul,avx512f,vpclmulqdq")))

bool can_fold() {
  return has_instruction() && __builtin_cpu_supports("pclmul") != 0 &&
         __builtin_cpu_supports("avx512f") != 0 && __builtin_cpu_supports("vpclmulqdq") != 0;
}

// The remainder of x^n, bits reversed, as a factor: the product of two reversed numbers is one bit
// short.
constexpr int64_t power(int n) { return int64_t{add_zero_bits(0x80000000, n)} << 1; }

// What takes 128 bits to a place `bits` behind: the half that comes first has 64 more to go, and
// both give up 32 to the remainder.
struct Fold {
  int64_t first;
  int64_t second;
};
constexpr Fold fold_by(int bits) { return {power(bits + 32), power(bits - 32)}; }

DMLCOMM_WITH_FOLDING inline __m512i repeat(Fold by) {
  return _mm512_set_epi64(by.second, by.first, by.second, by.first, by.second, by.first, by.second,
                          by.first);
}

DMLCOMM_WITH_FOLDING inline __m512i folded(__m512i value, __m512i by, __m512i onto) {
  return _mm512_ternarylogic_epi64(_mm512_clmulepi64_epi128(value, by, 0x00),
                                   _mm512_clmulepi64_epi128(value, by, 0x11), onto, 0x96);
}

DMLCOMM_WITH_FOLDING inline __m128i folded(__m128i value, Fold by, __m128i onto) {
  const __m128i factors = _mm_set_epi64x(by.second, by.first);
  return _mm_xor_si128(onto, _mm_xor_si128(_mm_clmulepi64_si128(value, factors, 0x00),
                                           _mm_clmulepi64_si128(value, factors, 0x11)));
}

DMLCOMM_WITH_FOLDING inline __m512i vector_of(const std::byte* from) {
  return _mm512_loadu_si512(from);
}

// Four vectors at a time: a product takes some cycles, and others begin meanwhile.
DMLCOMM_WITH_FOLDING uint32_t add_by_folding(uint32_t state, const std::byte* data, size_t bytes) {
  constexpr size_t kVector = 64, kRound = 4 * kVector;
  if (bytes < 2 * kRound) return add_by_instruction(state, data, bytes);
  __m512i a = vector_of(data), b = vector_of(data + kVector);
  __m512i c = vector_of(data + 2 * kVector), d = vector_of(data + 3 * kVector);
  a = _mm512_xor_si512(a, _mm512_zextsi128_si512(_mm_cvtsi32_si128(static_cast<int>(state))));
  data += kRound;
  bytes -= kRound;
  constexpr Fold kByRound = fold_by(8 * kRound), kByVector = fold_by(8 * kVector);
  const __m512i by_round = repeat(kByRound), by_vector = repeat(kByVector);
  for (; bytes >= kRound; data += kRound, bytes -= kRound) {
    a = folded(a, by_round, vector_of(data));
    b = folded(b, by_round, vector_of(data + kVector));
    c = folded(c, by_round, vector_of(data + 2 * kVector));
    d = folded(d, by_round, vector_of(data + 3 * kVector));
  }
  alignas(kVector) __m128i quarters[4];
  _mm512_store_si512(quarters, folded(folded(folded(a, by_vector, b), by_vector, c), by_vector, d));
  constexpr Fold kByQuarter = fold_by(128);
  __m128i rest = quarters[0];
  for (int i = 1; i < 4; ++i) rest = folded(rest, kByQuarter, quarters[i]);
  state = add_word(0, static_cast<uint64_t>(_mm_extract_epi64(rest, 0)));
  state = add_word(state, static_cast<uint64_t>(_mm_extract_epi64(rest, 1)));
  return add_by_instruction(state, data, bytes);
}

#endif

}  // namespace

std::vector<Crc32cWay> crc32c_ways() {
  std::vector<Crc32cWay> ways;
#if defined(__x86_64__)
  if (can_fold()) ways.push_back({"folding", add_by_folding});
#endif
#if defined(__x86_64__) || defined(__aarch64__)
  if (has_instruction()) ways.push_back({"instruction", add_by_instruction});
#endif
  ways.push_back({"tables", add_by_tables});
  return ways;
}

uint32_t crc32c(uint32_t before, const void* data, size_t bytes) {
  static const Crc32cWay best = crc32c_ways().front();
  return best(before, data, bytes);
}

}  // namespace dmlcomm
