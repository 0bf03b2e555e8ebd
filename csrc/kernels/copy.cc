#include "kernels/copy.h"

#include <cstdint>
#include <cstring>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

// Not a portable loop, as the other kernels are: compilers make no streaming stores of one.
namespace dmlcomm::kernels {

#if defined(__SSE2__)
void stream_copy(void* dst, const void* src, size_t bytes) {
  constexpr size_t kLine = 64;
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
  for (; bytes >= kLine; bytes -= kLine, to += kLine, from += kLine) {
    for (size_t i = 0; i < kLine; i += sizeof(__m128i)) {
      const __m128i value = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i));
      _mm_stream_si128(reinterpret_cast<__m128i*>(to + i), value);
    }
  }
  _mm_sfence();  // these stores are not ordered with others
  std::memcpy(to, from, bytes);
}
#else
void stream_copy(void* dst, const void* src, size_t bytes) { std::memcpy(dst, src, bytes); }
#endif

}  // namespace dmlcomm::kernels
