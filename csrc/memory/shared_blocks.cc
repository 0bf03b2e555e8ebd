#include "memory/shared_blocks.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>

#include "base/alignment.h"
#include "base/check.h"
#include "memory/shared_arena.h"

namespace dmlcomm {
namespace {

size_t page_bytes_of(size_t bytes) { return round_up(bytes, page_bytes()); }

void* pointer_to(uintptr_t address) { return reinterpret_cast<void*>(address); }

// Memory of its own, or null.
void* map_ordinary(void* at, size_t bytes, int flags) {
  void* memory =
      mmap(at, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0);
  return memory == MAP_FAILED ? nullptr : memory;
}

}  // namespace

SharedBlocks& SharedBlocks::instance() {
  static auto* const blocks = new SharedBlocks;  // memory is freed after static destructors, too
  return *blocks;
}

SharedBlocks::SharedBlocks() {
  (void)pthread_atfork([] { instance().before_fork(); }, [] { instance().mutex_.unlock(); },
                       [] { instance().after_fork_in_child(); });
}

void SharedBlocks::enable(SharedArena* arena, bool huge) {
  std::lock_guard lock(mutex_);
  arena_ = arena;
  huge_ = huge;
}

bool SharedBlocks::enabled() {
  std::lock_guard lock(mutex_);
  return arena_ != nullptr;
}

void* SharedBlocks::allocate(size_t bytes) {
  void* block = nullptr;
  if (posix_memalign(&block, page_bytes(), page_bytes_of(bytes)) != 0) return nullptr;
  add(block, bytes);
  return block;
}

void SharedBlocks::add(void* block, size_t bytes) {
  const auto address = reinterpret_cast<uintptr_t>(block);
  DMLCOMM_CHECK(address % page_bytes() == 0);
  std::lock_guard lock(mutex_);
  Block state;
  state.bytes = bytes;
  blocks_.emplace(address, state);
}

SharedBlocks::Removed SharedBlocks::remove(void* block) {
  std::lock_guard lock(mutex_);
  const auto it = blocks_.find(reinterpret_cast<uintptr_t>(block));
  if (it == blocks_.end()) return Removed::unknown;
  Block& state = it->second;
  bool is_ordinary = true;
  if (state.place != Place::own) {
    const bool in_use = state.is_written_to || (arena_ != nullptr && state.num_uses > 0);
    is_ordinary = !in_use && make_ordinary(it->first, state.bytes);
    if (is_ordinary && state.place == Place::frozen) leave_generation(state);
    if (is_ordinary && state.place == Place::arena) {
      arena_->free(arena_->at(state.offset), page_bytes_of(state.bytes));
    }
  }
  blocks_.erase(it);
  reclaim();
  return is_ordinary ? Removed::ordinary : Removed::stuck;
}

void SharedBlocks::consider(const void* memory, size_t bytes) {
  if (bytes < kMinBytes || bytes > kMaxBytes) return;
  std::lock_guard lock(mutex_);
  if (arena_ == nullptr) return;
  const auto it = blocks_.find(reinterpret_cast<uintptr_t>(memory));
  if (it == blocks_.end() || it->second.bytes != bytes) return;
  Block& state = it->second;
  const bool came_before = std::exchange(state.came_before, true);
  // Of a block that a fork has frozen the others may still be reading the pages it had.
  const bool may_move = state.place != Place::arena && state.num_uses == 0 && !state.stays;
  if (came_before && may_move) move(it->first, state);
}

// Threads that read the block meanwhile see the same bytes in its old pages and its new ones.
void SharedBlocks::move(uintptr_t block, Block& state) {
  reclaim();
  const size_t bytes = page_bytes_of(state.bytes);
  std::byte* const to = arena_->allocate_like(block, bytes, huge_);
  if (to == nullptr) return;
  std::memcpy(to, pointer_to(block), state.bytes);
  const auto offset = static_cast<size_t>(to - arena_->at(0));
  if (!map_arena(block, bytes, offset, MAP_SHARED)) {
    state.stays = true;  // too many mappings
    return arena_->free(to, bytes);
  }
  if (state.place == Place::frozen) leave_generation(state);
  state.offset = offset;
  state.place = Place::arena;
}

bool SharedBlocks::map_arena(uintptr_t block, size_t bytes, size_t offset, int sharing) const {
  return mmap(pointer_to(block), bytes, PROT_READ | PROT_WRITE, sharing | MAP_FIXED | MAP_NORESERVE,
              arena_->fd(), static_cast<off_t>(offset)) != MAP_FAILED;
}

bool SharedBlocks::copy_to_own_pages(uintptr_t block, const Block& state) {
  const size_t bytes = page_bytes_of(state.bytes);
  void* const other = map_ordinary(nullptr, bytes, 0);
  if (other == nullptr) return false;
  std::memcpy(other, pointer_to(block), state.bytes);
  void* const moved = mremap(other, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, pointer_to(block));
  if (moved == MAP_FAILED) munmap(other, bytes);
  return moved != MAP_FAILED;
}

bool SharedBlocks::make_ordinary(uintptr_t block, size_t bytes) {
  return map_ordinary(pointer_to(block), page_bytes_of(bytes), MAP_FIXED) != nullptr;
}

// --- while operations use blocks ---

std::map<uintptr_t, SharedBlocks::Block>::iterator SharedBlocks::find(const void* memory,
                                                                      size_t bytes) {
  const auto address = reinterpret_cast<uintptr_t>(memory);
  auto it = blocks_.upper_bound(address);
  if (it == blocks_.begin()) return blocks_.end();
  --it;
  const uintptr_t offset = address - it->first;
  const bool contains = offset < it->second.bytes && bytes <= it->second.bytes - offset;
  return contains ? it : blocks_.end();
}

bool SharedBlocks::is_shared(const void* memory, size_t bytes) {
  std::lock_guard lock(mutex_);
  if (arena_ != nullptr && arena_->contains(memory, bytes)) return true;
  const auto it = find(memory, bytes);
  return it != blocks_.end() && it->second.place == Place::arena;
}

SharedBlocks::Use SharedBlocks::use(const void* memory, size_t bytes, bool writes) {
  Use use;
  std::lock_guard lock(mutex_);
  if (arena_ != nullptr && arena_->contains(memory, bytes)) {
    use.address_ = reinterpret_cast<uintptr_t>(memory);
    return use;
  }
  const auto it = find(memory, bytes);
  if (it == blocks_.end() || it->second.place != Place::arena) return use;
  ++it->second.num_uses;
  it->second.num_writers += writes ? 1 : 0;
  use.blocks_ = this;
  use.block_ = it->first;
  use.writes_ = writes;
  use.address_ =
      arena_->address() + it->second.offset + (reinterpret_cast<uintptr_t>(memory) - it->first);
  return use;
}

SharedBlocks::Use::Use(Use&& other) noexcept { *this = std::move(other); }

SharedBlocks::Use& SharedBlocks::Use::operator=(Use&& other) noexcept {
  std::swap(blocks_, other.blocks_);
  std::swap(block_, other.block_);
  std::swap(address_, other.address_);
  std::swap(writes_, other.writes_);
  return *this;
}

void SharedBlocks::Use::release() {
  if (blocks_ == nullptr) return;
  std::lock_guard lock(blocks_->mutex_);
  const auto it = blocks_->blocks_.find(block_);
  if (it == blocks_->blocks_.end()) return;
  --it->second.num_uses;
  it->second.num_writers -= writes_ ? 1 : 0;
  blocks_ = nullptr;
}

void SharedBlocks::Use::abandon() {
  if (blocks_ == nullptr) return;
  std::lock_guard lock(blocks_->mutex_);
  const auto it = blocks_->blocks_.find(block_);
  if (it == blocks_->blocks_.end() || it->second.place != Place::arena) return;
  it->second.stays = true;
  if (copy_to_own_pages(block_, it->second)) {
    it->second.place = Place::own;
  } else {
    it->second.is_written_to = true;
  }
}

// --- forks ---

// A child inherits a private view of pages that nobody writes to any more; this process keeps one,
// too. The bytes of operations that are writing to a block have to arrive first.
void SharedBlocks::before_fork() {
  mutex_.lock();
  auto generation = generations_.end();
  for (auto& [block, state] : blocks_) {
    if (state.place != Place::arena || state.num_writers > 0) continue;
    const size_t bytes = page_bytes_of(state.bytes);
    if (!map_arena(block, bytes, state.offset, MAP_PRIVATE)) continue;
    if (generation == generations_.end()) {
      generation = generations_.emplace(generations_.end());
      int ends[2];
      if (pipe2(ends, O_CLOEXEC) == 0) {
        generation->alive_here = UniqueFd(ends[0]);
        generation->alive_there = UniqueFd(ends[1]);
      }
    }
    generation->memory.emplace_back(state.offset, bytes);
    ++generation->num_mapped;
    state.generation = generation;
    state.place = Place::frozen;
  }
}

void SharedBlocks::after_fork_in_child() {
  for (auto& [block, state] : blocks_) {
    if (state.place != Place::arena) continue;
    // Rather none of it than the parent's.
    if (!copy_to_own_pages(block, state)) munmap(pointer_to(block), page_bytes_of(state.bytes));
    state.place = Place::own;
  }
  arena_ = nullptr;
  mutex_.unlock();
}

void SharedBlocks::leave_generation(Block& state) {
  if (--state.generation->num_mapped == 0) state.generation->alive_there.reset();
}

// Memory that no child can see any more is used again.
void SharedBlocks::reclaim() {
  if (arena_ == nullptr) return;
  for (auto it = generations_.begin(); it != generations_.end();) {
    pollfd end{it->alive_here.get(), 0, 0};
    const bool is_over = it->num_mapped == 0 && it->alive_here.valid() && poll(&end, 1, 0) == 1 &&
                         (end.revents & POLLHUP) != 0;
    if (!is_over) {
      ++it;
      continue;
    }
    for (const auto& [offset, bytes] : it->memory) arena_->free(arena_->at(offset), bytes);
    it = generations_.erase(it);
  }
}

}  // namespace dmlcomm
