// Placement: keeps the ranks of one host evenly spread over its cores where they outnumber these.
//
// The kernel seldom moves threads that poll and yield: of 4 ranks on 2 cores it left three on one
// core for seconds, and every operation took 1.5 times as long. So each rank says on which core it
// drives, and where another core has at least two ranks less, one moves over there. It is not
// pinned: its affinity mask is put back right afterwards.
//
// All calls come with the progress lock held.
#pragma once

#include <sched.h>

#include <cstdint>
#include <map>

#include "transport/mesh.h"

namespace dmlcomm::engine {

class Placement {
 public:
  Placement(transport::Mesh& mesh, int rank, int num_ranks)
      : mesh_(mesh), rank_(rank), num_ranks_(num_ranks) {}

  // At the start of an operation, on the thread that drives. All ranks are on this host.
  void spread();

 private:
  bool leaves(int core) const;
  std::map<int, int> ranks_per_core() const;
  void move_from(int core);

  transport::Mesh& mesh_;
  const int rank_;
  const int num_ranks_;
  bool enabled_ = true;
  int64_t next_move_ns_ = 0;
};

}  // namespace dmlcomm::engine
