// Board: the short path of operations whose ranks all share one host.
//
// Small operations: each rank writes its part to a slot of its own shared memory, says so, waits
// until the others have said so, and reads theirs. Two copies, no system call, no message.
//
// All-reduces above kOneRoundBytes, where all ranks can reach each other's memory: each rank writes
// the address of its tensor to its slot, and takes care of its own N-th of the sum: segment by
// segment it reads the others' (process_vm_readv), adds up in the L2 cache, and writes the result
// to all (process_vm_writev) while it is still there. A second round tells that all is in place.
// This moves each byte once in either direction, and writes from the cache, which is about 1.4
// times as fast as letting the others fetch the result.
//
// Rounds. Round 1 belongs to the board itself: the ranks say whether they reach each other's
// memory. An operation is one or two rounds; all ranks count them alike. In round r a rank
//   enters   writes slot r % 2, and publishes r in its segment's header;
//   takes    waits for `round >= r` at all others, compares what they do with what it does, and
//   reads
//            the slots it needs. So a root learns, too, that the others named another one.
// Slot r % 2 was last used in round r - 2. A peer that has published r - 1 is through with r - 2,
// so a rank enters r only when all have published r - 1. Sums are in rank order on every rank.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/memory_pool.h"
#include "engine/op_state.h"
#include "engine/runner.h"
#include "transport/mesh.h"

namespace dmlcomm::engine {

class Board {
 public:
  Board(transport::Mesh& mesh, int rank, int num_ranks);

  // Round 1; to be called until ready().
  void greet(bool* moved);
  bool ready() const { return ready_; }
  bool greeting_waits_for(int peer) const;

  // Whether all ranks would carry `request` out on the board: depends on shared facts only. Once
  // ready().
  bool takes(const OpRequest& request) const;

 private:
  friend class BoardRunner;

  bool connected() const;
  bool published(int rank, uint64_t round) const;
  bool all_published(uint64_t round) const;
  void publish();
  bool goes_direct(const OpRequest& request) const;

  transport::Mesh& mesh_;
  const int rank_;
  const int num_ranks_;
  uint64_t round_ = 0;  // last round entered
  bool ready_ = false;
  bool direct_ = false;  // all ranks reach each other's memory
};

class BoardRunner final : public Runner {
 public:
  BoardRunner(Board& board, MemoryPool& pool, const OpState& op);
  ~BoardRunner() override;

  Status start() override;
  Status advance(bool* moved) override;
  bool complete() const override { return phase_ == Phase::done; }
  bool waits_for(int peer) const override;
  void stop() override;
  void on_sent(transport::SendRequest&) override {}
  void on_arrived(transport::RecvRequest&) override {}
  void provide_window(transport::RecvRequest&) override {}

 private:
  // How the data goes: through slots in one round, in two (reduce, then gather), or straight from
  // tensor to tensor.
  enum class Way { one_round, two_rounds, direct };
  enum class Phase { enter, take, work, done };

  void enter();
  Status take(bool* moved);
  void finish_round();
  Status check(int rank) const;
  bool combines() const;

  // A part of the operation's buffer, and of every slot.
  struct Part {
    size_t offset = 0;
    size_t bytes = 0;
  };
  Part part_of(int rank) const;
  std::byte* own_slot() const;
  const std::byte* slot_of(int rank) const;
  void put_input();
  void put_parts_of_others();
  void keep_own_part();
  void combine();
  void copy_from(int rank);
  void put();
  void prepare_work();
  Status work(bool* moved);
  Status work_on(const Part& segment);
  Status write_result(int rank, const Part& segment);
  size_t segment_bytes() const;

  Board& board_;
  MemoryPool& pool_;
  const OpState& op_;
  const OpRequest& request_;
  const Way way_;

  Phase phase_ = Phase::enter;
  int round_of_op_ = 0;
  uint64_t round_ = 0;
  uint64_t first_round_ = 0;         // direct: in which the others accept our writing
  std::vector<uint64_t> addresses_;  // direct: of everybody's tensor
  MemoryPool::Block staging_;        // direct: a segment of every other rank
  size_t worked_ = 0;                // direct: bytes of the own part that are done
  std::vector<int> pending_;  // ranks whose slots are still to be read or waited for in this round
};

}  // namespace dmlcomm::engine
