// Agenda: which collective of the ranks of one host runs next, once tickets are given.
//
// Collectives run one after the other on the board (board.h), so all ranks have to take the same
// one. Until tickets are given that is the next in the order of the calls. Ranks learn it from the
// slots, or the report, of one collective: at its end all of them know, and use the agenda from the
// next one on.
//
// Rank 0 chooses, by its own tickets, when it has nothing that runs, and publishes the number; the
// others follow. It chooses among those that all ranks have called, so an urgent one that a rank
// has not called yet holds nothing up. Each rank shows how far it has called, and which of these
// have memory in common with an earlier one: such a one runs only when it is the oldest. One choice
// in kChoicesPerOldest is the oldest.
//
// While a large one runs, rank 0 may choose a more urgent one that runs beside it, on a second
// board. Ranks leave the large one alone meanwhile. Only so many pass it that it has its turn, too.
//
// All calls require the progress lock.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <vector>

#include "base/alignment.h"
#include "base/status.h"
#include "engine/operation_queue.h"

namespace dmlcomm::engine {

class Board;

// In the area that each rank shares with the others of its host, all zeros at first. Written by the
// owner only.
struct AgendaWords {
  // The last collective that the owner has called, or one before; released after `ordered`.
  alignas(kCacheLineBytes) std::atomic<uint64_t> last_called;
  // A rank shows its calls up to fewer than so many places behind the oldest that has not ended.
  static constexpr uint64_t kPlaces = 256;
  static constexpr uint64_t kBits = 64;
  // Bit s % kPlaces: collective s, up to the last one called, has to wait for an earlier one.
  std::atomic<uint64_t> ordered[kPlaces / kBits];
  // Of rank 0: the collective that runs, or ran last; and the same of those beside one.
  alignas(kCacheLineBytes) std::atomic<uint64_t> next;
  std::atomic<uint64_t> next_beside;

  bool is_ordered(uint64_t sequence) const;
  void set_ordered(uint64_t sequence, bool is_ordered);
};

// A collective that all ranks have called, and that has not run.
struct AgendaItem {
  uint64_t sequence = 0;
  uint8_t ticket = 0;
  bool is_ordered = false;  // on some rank
};
// The one with the smallest ticket, or the first of them. What an ordered one has to wait for is as
// urgent as that. `items` in the order of their numbers, and not empty.
uint64_t most_urgent(const std::vector<AgendaItem>& items);

// One choice in so many is the oldest, so that none waits for ever.
constexpr uint64_t kChoicesPerOldest = 16;
// Choice `number`, from 1. `items` as for most_urgent().
uint64_t choice(const std::vector<AgendaItem>& items, uint64_t number);

class Agenda {
 public:
  explicit Agenda(Board& board) : board_(board) {}

  bool is_used() const { return is_used_; }
  // All ranks know that tickets are given, and have ended all collectives before `first`.
  void begin(uint64_t first);

  // Shows which collectives this rank has called since.
  void show(OperationQueue& queue);
  // The collective to run now, or null; none runs. An error where this rank has refused it.
  Result<OperationQueue::Running*> next(OperationQueue& queue);
  // The same, of those that run on the second board; none runs there.
  Result<OperationQueue::Running*> next_beside(OperationQueue& queue);
  // While there is none: whether `peer` has not called the oldest one.
  bool waits_for(int peer, uint64_t oldest) const;

 private:
  uint64_t called_by_all() const;
  std::vector<AgendaItem> items(const OperationQueue& queue, uint64_t until) const;
  uint64_t choose(const OperationQueue& queue);
  uint64_t choose_beside(OperationQueue& queue);
  // Of rank 0: `chosen`, unless it is 0, is what all ranks run now.
  void publish(std::atomic<uint64_t>& next, uint64_t chosen);
  // What rank 0 has chosen since `last`.
  Result<OperationQueue::Running*> start(uint64_t chosen, uint64_t& last, OperationQueue& queue);

  Board& board_;
  bool is_used_ = false;
  uint64_t last_shown_ = 0;
  uint64_t last_run_ = 0;
  uint64_t last_beside_ = 0;
  uint64_t num_choices_ = 0;
  uint64_t num_beside_ = 0;  // of the one that runs
  // What choose_beside() has looked at: nothing to choose there.
  std::array<uint64_t, 3> looked_at_{};
};

}  // namespace dmlcomm::engine
