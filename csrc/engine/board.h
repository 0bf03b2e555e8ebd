// Board: the short path of operations whose ranks all share one host.
//
// Each rank writes its part to a slot of its own shared memory, says so, waits until the others have
// said so, and reads theirs: two copies, no system call, no message. Best where a system call costs
// more than a copy, up to about a megabyte.
//
// Rounds. An operation is one or two rounds; all ranks count them alike. In round r a rank
//   enters   writes slot r % 2, and publishes r in its segment's header;
//   takes    waits for `round >= r` at the ranks whose slots it needs, and reads them.
// Slot r % 2 was last used in round r - 2. A peer that has published r - 1 is through with r - 2, so a
// rank enters r only when all have published r - 1. Sums are in rank order on every rank.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/op_state.h"
#include "engine/runner.h"
#include "transport/mesh.h"

namespace dmlcomm::engine {

class Board {
 public:
  Board(transport::Mesh& mesh, int rank, int num_ranks);

  // Whether all ranks would carry `request` out on the board: depends on shared facts only.
  bool takes(const OpRequest& request) const;

 private:
  friend class BoardRunner;

  transport::Mesh& mesh_;
  const int rank_;
  const int num_ranks_;
  uint64_t round_ = 0;  // last round entered
};

class BoardRunner final : public Runner {
 public:
  BoardRunner(Board& board, const OpState& op);

  Status start() override;
  Status advance(bool* moved) override;
  bool complete() const override { return phase_ == Phase::done; }
  bool waits_for(int peer) const override;
  void on_sent(transport::SendRequest&) override {}
  void on_arrived(transport::RecvRequest&) override {}
  void provide_window(transport::RecvRequest&) override {}

 private:
  enum class Phase { connect, enter, take, done };

  bool connected() const;
  bool published(int rank, uint64_t round) const;
  bool may_enter() const;
  void enter();
  Status take(bool* moved);
  Status take_one(int rank, bool* moved);
  void finish_round();
  Status check(int rank) const;
  bool needs(int rank) const;
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

  Board& board_;
  const OpState& op_;
  const OpRequest& request_;
  const bool two_rounds_;

  Phase phase_ = Phase::connect;
  int round_of_op_ = 0;
  uint64_t round_ = 0;
  std::vector<int> pending_;  // ranks whose slots are still to be read or waited for in this round
};

}  // namespace dmlcomm::engine
