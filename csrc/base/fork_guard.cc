#include "base/fork_guard.h"

#include <fcntl.h>
#include <pthread.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>

namespace dmlcomm {
namespace {

// Descriptors above are not guarded.
constexpr int kMaxDescriptors = 1 << 16;
constexpr int kBitsPerWord = 64;

std::array<std::atomic<uint64_t>, kMaxDescriptors / kBitsPerWord> guarded;
std::atomic<int> generation{0};

bool in_range(int fd) { return fd >= 0 && fd < kMaxDescriptors; }

uint64_t bit_of(int fd) { return uint64_t{1} << (fd % kBitsPerWord); }

std::atomic<uint64_t>& word_of(int fd) { return guarded[static_cast<size_t>(fd / kBitsPerWord)]; }

// Only async-signal-safe calls: other threads may have held any lock at the fork.
void after_fork_in_child() {
  generation.fetch_add(1, std::memory_order_relaxed);
  int null = -1;
  for (size_t i = 0; i < guarded.size(); ++i) {
    for (uint64_t left = guarded[i].load(std::memory_order_relaxed); left != 0; left &= left - 1) {
      const int fd = static_cast<int>(i) * kBitsPerWord + std::countr_zero(left);
      if (null < 0) null = open("/dev/null", O_RDWR | O_CLOEXEC);
      (void)dup3(null, fd, O_CLOEXEC);
    }
    guarded[i].store(0, std::memory_order_relaxed);
  }
  if (null >= 0) close(null);
}

void watch_forks() {
  static const int once = pthread_atfork(nullptr, nullptr, &after_fork_in_child);
  (void)once;
}

}  // namespace

void drop_in_children(int fd) {
  watch_forks();
  if (in_range(fd)) word_of(fd).fetch_or(bit_of(fd), std::memory_order_relaxed);
}

void forget_descriptor(int fd) {
  if (in_range(fd)) word_of(fd).fetch_and(~bit_of(fd), std::memory_order_relaxed);
}

int fork_generation() {
  watch_forks();
  return generation.load(std::memory_order_relaxed);
}

}  // namespace dmlcomm
