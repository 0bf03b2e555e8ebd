// Board: the ranks of one host meet here, without messages.
//
// Each rank has slots in its own shared memory that the others read, and counts rounds. In round r
// a rank
//   enters   writes slot r % 2, and publishes r in its BoardHeader;
//   takes    waits for `round >= r` at all others, compares their operation with its own, and reads
//            the slots it needs. So a root also learns that the others named another root.
// Slot r % 2 was last used in round r - 2. A peer that has published r - 1 is through with r - 2,
// so a rank enters r only when all have published r - 1.
//
// Round 1 belongs to the board itself: the ranks say whether they reach each other's memory. An
// operation takes one or two rounds, and all ranks count them alike. The slots carry either the
// data (SlotRunner, algorithm `slots`) or addresses of it (DirectRunner, `peer_memory`); the
// planner chooses (schedule/algorithms/shared_memory.cc). In the first round of `peer_memory` a
// slot may hold a copy. The others write to it, too, until they publish the second round.
//
// All of this lies in the area that each rank shares with the others of its host: BoardHeader, and
// from the next page on the two slots; then the same of a second board.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/alignment.h"
#include "engine/local/agenda.h"
#include "engine/op_state.h"
#include "engine/runner.h"
#include "memory/memory_pool.h"
#include "schedule/algorithms.h"
#include "topology/topology.h"
#include "transport/mesh.h"

namespace dmlcomm::engine {

// At the begin of the shared area, all zeros at first. Written by the owner only.
struct BoardHeader {
  // 1 + the core on which the owner has driven last (placement.h), 0: none; a hint.
  std::atomic<int32_t> core_plus_one;
  // Last round the owner has entered; its slot `round % kNumSlots` is filled. Released by the owner
  // after the slot and `op` have been written, acquired by the others before they read.
  alignas(kCacheLineBytes) std::atomic<uint64_t> round;
  static constexpr int kNumSlots = 2;
  transport::OpInfo op[kNumSlots];
  // 1: the owner gives tickets (agenda.h).
  uint8_t uses_tickets[kNumSlots];
  // 1: this rank can read and write the memory of all others; valid from round 1 on.
  uint32_t reaches_all;
  // 1: tensors of this rank may lie in its arena; the same.
  uint32_t shares_tensors;
  // The round in which the others may write to the owner's memory (transport::WriteGuard), 0: none.
  alignas(kCacheLineBytes) std::atomic<uint64_t> accepts_round;
  AgendaWords agenda;
};

class Board {
 public:
  // Of the shared area.
  static size_t area_bytes(size_t slot_bytes);

  explicit Board(transport::Mesh& mesh);
  // The second one, for what runs beside the first one's operations (agenda.h), which is ready.
  explicit Board(const Board& first);
  Board& operator=(const Board&) = delete;

  // Carries out round 1; to be called until ready().
  void exchange_capabilities(bool* moved);
  bool ready() const { return ready_; }
  bool capabilities_wait_for(int peer) const;

  // The ranks' access to each other's memory, the same on all of them. Once ready().
  const topology::SharedMemory& memory() const { return memory_; }

  // Carries `op` out; `algorithm` is no schedule. Once ready().
  std::unique_ptr<Runner> runner_for(const OpState& op, const schedule::Algorithm& algorithm,
                                     MemoryPool& pool);

  // --- for the runners ---
  int rank() const { return rank_; }
  int num_ranks() const { return num_ranks_; }
  transport::Link& link(int rank) { return mesh_.link(rank); }
  BoardHeader& header() { return header_of(rank_); }
  BoardHeader& header_of(int rank) const { return *headers_[rank]; }
  std::byte* own_slot(uint64_t round) const { return slot_of(rank_, round); }
  std::byte* slot_of(int rank, uint64_t round) const;
  size_t slot_bytes() const { return mesh_.job().config.shm_board_bytes; }

  uint64_t round() const { return round_; }  // last one entered
  bool published(int rank, uint64_t round) const;
  bool all_published(uint64_t round) const;
  // Enters the next round.
  void publish();
  void notify(int rank) { mesh_.notify(rank); }

  // Whether this rank gives tickets; the others learn it with the next operation.
  bool uses_tickets() const { return uses_tickets_; }
  void set_uses_tickets(bool uses) { uses_tickets_ = uses; }

 private:
  bool find_headers();

  transport::Mesh& mesh_;
  const int rank_;
  const int num_ranks_;
  std::vector<BoardHeader*> headers_;  // by rank; of others from num_found_ on null
  bool has_begun_ = false;             // to connect
  int num_found_ = 0;                  // the first ranks, whose headers are there
  int num_published_ = 0;              // the first ranks, whose capabilities are there
  uint64_t round_ = 0;
  bool ready_ = false;
  bool uses_tickets_ = false;
  topology::SharedMemory memory_;
};

// The shared memory of ranks with slots of `slot_bytes`. `reaches_all`: each rank reaches the
// memory of all others; `shares_tensors`: on all of them tensors may lie in the arena.
topology::SharedMemory shared_memory(uint32_t num_ranks, size_t slot_bytes, bool reaches_all,
                                     bool shares_tensors);

}  // namespace dmlcomm::engine
