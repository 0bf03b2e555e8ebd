#include "kernels/copy.h"

#include <cstdint>
#include <cstring>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

// Not a portable loop, as the other kernels are: compilers make no streaming stores of one.
namespace dmlcomm::kernels {

#if defined(__SSE2__)
namespace {

constexpr size_t kLine = 64;
// One core has more reads from memory under way if they go to several pages at once. Stores must
// not: a Zen 3 that streams to four pages in turn writes 2 GB/s instead of 12.
constexpr size_t kPage = 4096;
constexpr size_t kPagesAhead = 4;
constexpr size_t kBlock = kPagesAhead * kPage;

void stream_line(char* to, const char* from) {
  for (size_t i = 0; i < kLine; i += sizeof(__m128i)) {
    const __m128i value = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i));
    _mm_stream_si128(reinterpret_cast<__m128i*>(to + i), value);
  }
}

// One line after the other, while those of `next` come in from all its pages.
void stream_block(char* to, const char* from, const char* next) {
  size_t done = 0;
  for (size_t line = 0; line < kPage; line += kLine) {
    for (size_t page = 0; page < kBlock; page += kPage, done += kLine) {
      _mm_prefetch(next + page + line, _MM_HINT_T0);
      stream_line(to + done, from + done);
    }
  }
}

}  // namespace

void stream_copy(void* dst, const void* src, size_t bytes) {
  auto* to = static_cast<char*>(dst);
  const auto* from = static_cast<const char*>(src);
  const size_t to_line = (kLine - reinterpret_cast<uintptr_t>(to) % kLine) % kLine;
  if (bytes < to_line + kLine) {
    std::memcpy(to, from, bytes);
    return;
  }
  std::memcpy(to, from, to_line);
  to += to_line;
  from += to_line;
  bytes -= to_line;
  for (; bytes >= kBlock; bytes -= kBlock, to += kBlock, from += kBlock) {
    stream_block(to, from, bytes >= 2 * kBlock ? from + kBlock : from);
  }
  for (; bytes >= kLine; bytes -= kLine, to += kLine, from += kLine) stream_line(to, from);
  _mm_sfence();  // these stores are not ordered with others
  std::memcpy(to, from, bytes);
}
#else
void stream_copy(void* dst, const void* src, size_t bytes) { std::memcpy(dst, src, bytes); }
#endif

}  // namespace dmlcomm::kernels
