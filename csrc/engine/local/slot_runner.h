// SlotRunner: an operation whose data goes through the slots of the board: each rank writes its
// part to its slot, and the others read it there. Two copies, no system call.
//
// In one round every rank adds up its whole result. An all-reduce may take two: each rank adds up
// its N-th, and fetches the others' in the second. Sums are in rank order on every rank.
#pragma once

#include "engine/local/board_runner.h"
#include "schedule/algorithms/shared_memory.h"

namespace dmlcomm::engine {

class SlotRunner final : public BoardRunner {
 public:
  SlotRunner(Board& board, const OpState& op, const schedule::Algorithm& algorithm)
      : BoardRunner(board, op, algorithm),
        num_rounds_(schedule::rounds_of_slots(op.request().shape)) {}

 private:
  // A part of the operation's buffer, and of every slot.
  struct Part {
    size_t offset = 0;
    size_t bytes = 0;
  };

  void put() override;
  Status take(int rank) override;
  Status all_taken() override;

  bool combines() const { return request().reduces() && round_of_op() == 1; }
  Part part_of(int rank) const;
  std::byte* own_slot() const { return board().own_slot(round()); }
  void put_input();
  void put_parts_of_others();
  void keep_own_part();
  void combine();

  const int num_rounds_;
};

}  // namespace dmlcomm::engine
