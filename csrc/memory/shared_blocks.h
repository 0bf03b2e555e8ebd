// SharedBlocks: large blocks of the program's memory, which other processes of the host may map.
//
// A block that is used again and again moves to the arena (shared_arena.h): pages of the arena take
// the place of its own, at the same address and with the same bytes. Other processes, which have
// mapped the arena, then read and write it as their own memory.
//
// Nothing else about the block changes. A fork makes it private on both sides, as the rest of the
// memory, with the bytes of that moment; it moves again when it is used again. The heap gets it
// back with pages of its own.
//
// Thread safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "base/unique_fd.h"

namespace dmlcomm {

class SharedArena;

class SharedBlocks {
 public:
  // Smaller ones take other ways anyway, and larger ones would hold up everybody while they move.
  static constexpr size_t kMinBytes = size_t{64} << 10;
  static constexpr size_t kMaxBytes = size_t{1} << 30;

  // Those of this process.
  static SharedBlocks& instance();

  // From now on blocks may be moved, to huge pages if `huge`. Without an arena nothing is.
  void enable(SharedArena* arena, bool huge);
  bool enabled();

  // A block of the heap that is added; null if there is no memory. After remove() it is freed by
  // free(), if it may be.
  void* allocate(size_t bytes);
  // `bytes` of `block` are in use; it begins at the beginning of a page, and nothing else lies in
  // its last page.
  void add(void* block, size_t bytes);
  // They are not any more, and what they hold is lost.
  enum class Removed {
    unknown,   // it was never added
    ordinary,  // it may go back to the heap
    stuck,     // it must not: it could not be made ordinary
  };
  Removed remove(void* block);

  // Memory that an operation is about to use, and nobody else writes to: a block that it fills from
  // end to end moves to the arena when it comes for the second time.
  void consider(const void* memory, size_t bytes);

  // Whether the memory is in the arena.
  bool is_shared(const void* memory, size_t bytes);

  // Keeps a block in the arena while other processes use it.
  class Use {
   public:
    Use() = default;
    Use(Use&& other) noexcept;
    Use& operator=(Use&& other) noexcept;
    ~Use() { release(); }

    // The address of the memory in the arena, for other processes; 0: it is not in the arena.
    uint64_t address() const { return address_; }
    // A process that was stopped may yet write to it: the block gets other memory, with the same
    // bytes, and that of the arena is never used again.
    void abandon();

   private:
    friend class SharedBlocks;
    void release();

    SharedBlocks* blocks_ = nullptr;
    uintptr_t block_ = 0;
    uint64_t address_ = 0;
    bool writes_ = false;
  };
  // `writes`: the others write there. A fork leaves it shared then; the child gets a copy of what
  // it holds by then. Memory that was allocated in the arena itself is there anyway.
  Use use(const void* memory, size_t bytes, bool writes);

 private:
  // Children that were forked while blocks were in the arena, and their view of it.
  struct Generation {
    UniqueFd alive_here;  // readable, and at its end, when no process has the other one
    UniqueFd
        alive_there;  // inherited by children; closed when this process needs the blocks no more
    size_t num_mapped = 0;
    std::vector<std::pair<size_t, size_t>> memory;  // of the arena: offset, bytes
  };
  enum class Place { own, arena, frozen };
  struct Block {
    size_t bytes = 0;   // that are in use
    size_t offset = 0;  // in the arena
    Place place = Place::own;
    bool came_before = false;
    bool stays = false;          // is never moved again
    bool is_written_to = false;  // by a process that was stopped: its memory is never used again
    int num_uses = 0;
    int num_writers = 0;
    std::list<Generation>::iterator generation;  // if frozen
  };

  SharedBlocks();
  void before_fork();
  void after_fork_in_child();

  bool map_arena(uintptr_t block, size_t bytes, size_t offset, int sharing) const;
  static bool copy_to_own_pages(uintptr_t block, const Block& state);
  static bool make_ordinary(uintptr_t block, size_t bytes);
  void move(uintptr_t block, Block& state);
  void leave_generation(Block& state);
  void reclaim();
  std::map<uintptr_t, Block>::iterator find(const void* memory, size_t bytes);

  std::mutex mutex_;
  // Guarded by mutex_.
  bool huge_ = false;
  SharedArena* arena_ = nullptr;  // null in forked children, too, where no operation uses anything
  std::map<uintptr_t, Block> blocks_;
  std::list<Generation> generations_;
};

}  // namespace dmlcomm
