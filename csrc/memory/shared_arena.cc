#include "memory/shared_arena.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <fstream>
#include <iterator>
#include <utility>

#include "base/alignment.h"
#include "base/check.h"
#include "base/fork_guard.h"
#include "memory/huge_pages.h"
#include "memory/seal.h"

namespace dmlcomm {
namespace {

// Nothing has an address of its own, too.
size_t block_bytes(size_t bytes) { return round_up(std::max(bytes, size_t{1}), kCacheLineBytes); }

// The kernel makes a huge page of one that has something in it.
bool make_huge(std::byte* page) {
  *page = std::byte{0};
  return madvise(page, kHugePageBytes, kMadvCollapse) == 0;
}

// Having none just now is as good.
bool gives_huge_pages(std::byte* page) {
  const bool can = make_huge(page) || errno != EINVAL;
  (void)madvise(page, kHugePageBytes, MADV_REMOVE);
  return can;
}

// At the beginning of a huge page, as the file is: else the kernel makes no huge pages of it.
std::byte* map_aligned(int fd, size_t bytes) {
  void* room = mmap(nullptr, bytes + kHugePageBytes, PROT_NONE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (room == MAP_FAILED) return nullptr;
  auto* const begin = static_cast<std::byte*>(room);
  const auto address = reinterpret_cast<uintptr_t>(room);
  std::byte* const base = begin + (round_up(address, kHugePageBytes) - address);
  void* mapped =
      mmap(base, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE | MAP_FIXED, fd, 0);
  if (mapped == MAP_FAILED) {
    munmap(room, bytes + kHugePageBytes);
    return nullptr;
  }
  if (base > begin) munmap(begin, static_cast<size_t>(base - begin));
  munmap(base + bytes, kHugePageBytes - static_cast<size_t>(base - begin));
  return base;
}

// Where the kernel promises no more memory than there is, a page of a sparse file that it refuses
// later would end the process.
bool memory_may_be_refused() {
  std::ifstream file("/proc/sys/vm/overcommit_memory");
  int mode = 0;
  return (file >> mode) && mode == 2;
}

// The memory of the machine: more cannot be in use. 0 if that is unknown.
size_t wanted_bytes() {
  const long pages = sysconf(_SC_PHYS_PAGES);
  return pages <= 0 ? 0 : round_up(static_cast<size_t>(pages) * page_bytes(), kHugePageBytes);
}

std::atomic<SharedArena*> arena_of_process{nullptr};

}  // namespace

SharedArena* SharedArena::make() {
  static const bool once = [] {
    const size_t bytes = wanted_bytes();
    UniqueFd fd(memfd_create("dmlcomm-arena", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    if (memory_may_be_refused() || bytes == 0 || !fd.valid() ||
        ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0 || !seal_size(fd.get()).ok()) {
      return false;
    }
    std::byte* base = map_aligned(fd.get(), bytes);
    if (base == nullptr) return false;
    if (!gives_huge_pages(base)) {
      munmap(base, bytes);
      return false;
    }
    arena_of_process.store(new SharedArena(std::move(fd), base, bytes));
    return true;
  }();
  (void)once;
  return existing();
}

SharedArena* SharedArena::existing() {
  SharedArena* arena = arena_of_process.load();
  return arena == nullptr || arena->is_copy() ? nullptr : arena;
}

bool SharedArena::is_copy() const { return fork_generation_ != fork_generation(); }

SharedArena::SharedArena(UniqueFd fd, std::byte* base, size_t bytes)
    : fork_generation_(fork_generation()),
      fd_(std::move(fd)),
      base_(base),
      bytes_(bytes),
      taken_(bytes / kHugePageBytes) {
  free_.emplace(0, bytes);
}

std::byte* SharedArena::allocate(size_t bytes, bool huge) {
  bytes = block_bytes(bytes);
  std::lock_guard lock(mutex_);
  const std::optional<size_t> begin = take(bytes, 0, 1);
  if (!begin.has_value()) return nullptr;
  take_pages(*begin, *begin + bytes, huge);
  return base_ + *begin;
}

std::byte* SharedArena::allocate_like(uintptr_t address, size_t bytes, bool huge) {
  std::lock_guard lock(mutex_);
  const std::optional<size_t> begin = take(bytes, address, kHugePageBytes);
  if (!begin.has_value()) return nullptr;
  const size_t end = *begin + bytes;
  take_pages(*begin, end, false);
  for (size_t at = round_up(*begin, kHugePageBytes); huge && at + kHugePageBytes <= end;
       at += kHugePageBytes) {
    (void)make_huge(base_ + at);
  }
  return base_ + *begin;
}

// The first free `bytes` that begin at `address` modulo `unit`, or nothing.
std::optional<size_t> SharedArena::take(size_t bytes, uintptr_t address, size_t unit) {
  for (auto it = free_.begin(); it != free_.end(); ++it) {
    const auto [first, room] = *it;
    const size_t begin = first + (address - first) % unit;
    const size_t end = begin + bytes;
    if (end > first + room) continue;
    free_.erase(it);
    if (begin > first) free_.emplace(first, begin - first);
    if (end < first + room) free_.emplace(end, first + room - end);
    return begin;
  }
  return std::nullopt;
}

void SharedArena::free(std::byte* memory, size_t bytes) {
  if (is_copy()) return;
  bytes = block_bytes(bytes);
  auto begin = static_cast<size_t>(memory - base_);
  DMLCOMM_CHECK(begin + bytes <= bytes_);
  const size_t first_page = begin / kHugePageBytes;
  const size_t last_page = (begin + bytes - 1) / kHugePageBytes;
  std::lock_guard lock(mutex_);
  const auto next = free_.lower_bound(begin);
  if (next != free_.end() && next->first == begin + bytes) {
    bytes += next->second;
    free_.erase(next);
  }
  const auto after = free_.lower_bound(begin);
  if (after != free_.begin() && std::prev(after)->first + std::prev(after)->second == begin) {
    begin = std::prev(after)->first;
    bytes += std::prev(after)->second;
    free_.erase(begin);
  }
  free_.emplace(begin, bytes);
  // Those that are free from end to end now.
  for (size_t page = first_page; page <= last_page; ++page) {
    const size_t at = page * kHugePageBytes;
    if (at < begin || at + kHugePageBytes > begin + bytes) continue;
    taken_[page] = false;
    (void)madvise(base_ + at, kHugePageBytes, MADV_REMOVE);
  }
}

void SharedArena::take_pages(size_t begin, size_t end, bool huge) {
  for (size_t page = begin / kHugePageBytes; page * kHugePageBytes < end; ++page) {
    const bool is_new = !taken_[page];
    taken_[page] = true;
    if (!is_new || !huge) continue;
    (void)make_huge(base_ + page * kHugePageBytes);
  }
}

Result<MappedArena> MappedArena::map(int fd, uint64_t address, uint64_t bytes) {
  struct stat info;
  if (fstat(fd, &info) != 0) return errno_status(StatusCode::io_error, "fstat", errno);
  if (bytes == 0 || static_cast<uint64_t>(info.st_size) != bytes) {
    return Status(StatusCode::protocol_error, "a shared arena has ", info.st_size,
                  " bytes, its owner says ", bytes);
  }
  if (!has_sealed_size(fd)) {
    return Status(StatusCode::protocol_error,
                  "a shared arena could be cut while it is in use: its size is not sealed");
  }
  std::byte* const base = map_aligned(fd, bytes);
  if (base == nullptr) {
    return errno_status(StatusCode::io_error, "mmap of a shared arena", errno);
  }
  MappedArena arena;
  arena.address_ = address;
  arena.memory_ = {base, Unmap{bytes}};
  return arena;
}

void MappedArena::Unmap::operator()(std::byte* base) const { munmap(base, bytes); }

std::byte* MappedArena::find(uint64_t address, size_t bytes) const {
  const size_t room = memory_.get_deleter().bytes;
  if (memory_ == nullptr || address < address_ || address - address_ > room) return nullptr;
  const size_t offset = address - address_;
  return bytes <= room - offset ? memory_.get() + offset : nullptr;
}

}  // namespace dmlcomm
