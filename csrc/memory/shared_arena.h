// SharedArena: memory of this process that other processes of the host may map.
//
// A process that maps it copies to and from it without the kernel, at almost twice the speed of
// process_vm_writev. It is one memfd, mapped at the beginning of a huge page and far larger than
// what is in use: pages are taken when memory is allocated, and given back with it. Peers receive
// the descriptor with the handshake of a connection.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "base/status.h"
#include "base/unique_fd.h"

namespace dmlcomm {

class SharedArena {
 public:
  // The arena of this process, which stays to its end; made by the first call. Null where the
  // kernel gives none, or no huge pages in it (before Linux 6.1).
  static SharedArena* make();
  // Null until one was made; and in forked children, which must leave it to their parent.
  static SharedArena* existing();

  // At the beginning of a cache line, and uninitialised. On huge pages if `huge` and the kernel
  // can. Null if the arena is full.
  std::byte* allocate(size_t bytes, bool huge);
  // Whole pages that take the place of those at `address`: where these fill a huge page, so do
  // they, and are one if `huge` and the kernel can.
  std::byte* allocate_like(uintptr_t address, size_t bytes, bool huge);
  void free(std::byte* memory, size_t bytes);

  int fd() const { return fd_.get(); }
  std::byte* at(size_t offset) const { return base_ + offset; }
  uint64_t address() const { return reinterpret_cast<uintptr_t>(base_); }
  size_t bytes() const { return bytes_; }
  bool contains(const void* memory, size_t bytes) const {
    const uint64_t offset = reinterpret_cast<uintptr_t>(memory) - address();
    return offset < bytes_ && bytes <= bytes_ - offset;
  }

 private:
  SharedArena(UniqueFd fd, std::byte* base, size_t bytes);

  // With mutex_ held.
  std::optional<size_t> take(size_t bytes, uintptr_t address, size_t unit);
  void take_pages(size_t begin, size_t end, bool huge);

  bool is_copy() const;

  const int fork_generation_;
  const UniqueFd fd_;
  std::byte* const base_;
  const size_t bytes_;
  std::mutex mutex_;
  // Guarded by mutex_.
  std::map<size_t, size_t> free_;  // offset -> bytes; neighbours are merged
  std::vector<bool> taken_;        // by huge page: whether anything in it was ever allocated
};

// Another process's arena, in this one.
class MappedArena {
 public:
  // `fd` stays the caller's, who may close it afterwards. `address` and `bytes` are what its owner
  // says of it.
  static Result<MappedArena> map(int fd, uint64_t address, uint64_t bytes);
  // Where `bytes` at `address` of its owner are here; null if they are not all in the arena.
  std::byte* find(uint64_t address, size_t bytes) const;

 private:
  struct Unmap {
    size_t bytes;
    void operator()(std::byte* base) const;
  };
  uint64_t address_ = 0;
  std::unique_ptr<std::byte[], Unmap> memory_;
};

}  // namespace dmlcomm
