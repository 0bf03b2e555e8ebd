// BoardRunner: the common part of all operations on the board, the walk through rounds (board.h).
#pragma once

#include <vector>

#include "engine/local/board.h"
#include "schedule/algorithms.h"

namespace dmlcomm::engine {

class BoardRunner : public Runner {
 public:
  // Ranks that take different algorithms notice by their numbers.
  BoardRunner(Board& board, const OpState& op, const schedule::Algorithm& algorithm);

  Status start() final;
  Status advance(bool* moved) final;
  bool complete() const final { return phase_ == Phase::done; }
  bool waits_for(int peer) const final;
  transport::RankReport report() const final { return report_; }

 protected:
  // Fills the own slot of the round that is entered next.
  virtual void put() = 0;
  // The slot of `rank` is there, and it does the same operation.
  virtual Status take(int rank) = 0;
  // All slots have been taken. Goes on with one of the three below: the next round, work, the end.
  virtual Status all_taken() = 0;
  // One bounded piece of work, until it goes on; sets `moved` unless it can only wait.
  virtual Status work(bool*) { return Status(); }

  void enter();
  void begin_work() { phase_ = Phase::work; }
  void finish() { phase_ = Phase::done; }

  Board& board() const { return board_; }
  const OpState& op() const { return op_; }
  const OpRequest& request() const { return op_.request(); }
  int rank() const { return board_.rank(); }
  int num_ranks() const { return board_.num_ranks(); }
  bool is_root() const { return rank() == static_cast<int>(request().shape.root); }
  uint64_t round() const { return round_; }         // the one entered last
  int round_of_op() const { return round_of_op_; }  // the same, from 1
  uint64_t divisor() const;                         // of a reduction's result

 private:
  enum class Phase { take, work, done };

  Status take_published(bool* moved);
  Status check(int rank);

  Board& board_;
  const OpState& op_;
  Phase phase_ = Phase::take;
  transport::RankReport report_;  // of all ranks
  uint64_t round_ = 0;
  int round_of_op_ = 0;
  std::vector<int> pending_;  // ranks whose slots of this round are still to be taken
};

}  // namespace dmlcomm::engine
