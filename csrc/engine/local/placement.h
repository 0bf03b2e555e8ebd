// Placement: keeps the ranks of one host evenly spread over its cores where they leave none free.
//
// The kernel seldom moves threads that wake each other, or that poll and yield: of 2 ranks on 2
// cores it left both on one for seconds, where an operation that takes 40 us took 250; of 4 ranks
// three on one core. Ranks that share memory say on which core they drive, and one moves to another
// core if that has at least two ranks less. Over loopback each rank has its core, which the
// schedules rely on. Nobody is pinned: the affinity mask is put back right after a move.
//
// All calls require the progress lock.
#pragma once

#include <sched.h>

#include <cstdint>
#include <map>

#include "engine/local/board.h"

namespace dmlcomm::engine {

class Placement {
 public:
  // `ranks_per_home`: rank r has core r / this, counted among those that it may use; 0 where ranks
  // spread by themselves. All of them are on this host.
  Placement(Board& board, int ranks_per_home);

  // At the start of an operation, on the thread that drives.
  void settle();

 private:
  bool leaves(int core) const;
  int core_of(int rank) const;
  std::map<int, int> ranks_per_core() const;
  int emptiest_core(int core, const cpu_set_t& allowed) const;
  void move_from(int core);

  Board& board_;
  const int home_;  // the core that is this rank's, -1 where it has none
  bool enabled_;
  int64_t next_move_ns_ = 0;
};

}  // namespace dmlcomm::engine
