#include "engine/placement.h"

#include "base/clock.h"
#include "base/log.h"

namespace dmlcomm::engine {
namespace {

// A move costs about 20 us; where the kernel has other reasons it shall win.
constexpr int64_t kMinMoveIntervalNs = 10 * kNsPerMs;

}  // namespace

void Placement::spread() {
  const int core = sched_getcpu();
  if (core < 0 || !enabled_) return;
  auto& own = mesh_.segment().header().core;
  if (own.load(std::memory_order_relaxed) != core) own.store(core, std::memory_order_relaxed);
  if (!leaves(core)) return;
  const int64_t now = now_ns();
  if (now < next_move_ns_) return;
  next_move_ns_ = now + kMinMoveIntervalNs;
  move_from(core);
}

// Of the ranks on a core only the highest moves: they shall not all follow the same thought.
bool Placement::leaves(int core) const {
  for (int rank = rank_ + 1; rank < num_ranks_; ++rank) {
    if (mesh_.peer_segment(rank)->header().core.load(std::memory_order_relaxed) == core) {
      return false;
    }
  }
  return true;
}

std::map<int, int> Placement::ranks_per_core() const {
  std::map<int, int> counts;
  for (int rank = 0; rank < num_ranks_; ++rank) {
    transport::shm::Segment& segment = rank == rank_ ? mesh_.segment() : *mesh_.peer_segment(rank);
    const int core = segment.header().core.load(std::memory_order_relaxed);
    if (core != transport::shm::kNoCore) ++counts[core];
  }
  return counts;
}

// To the emptiest core that this thread may use, if that is worth it.
void Placement::move_from(int core) {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  if (sched_getaffinity(0, sizeof(allowed), &allowed) != 0) return;
  std::map<int, int> counts = ranks_per_core();
  int emptiest = core;
  for (int other = 0; other < CPU_SETSIZE; ++other) {
    if (CPU_ISSET(other, &allowed) && counts[other] < counts[emptiest]) emptiest = other;
  }
  if (counts[core] - counts[emptiest] < 2) return;
  cpu_set_t target;
  CPU_ZERO(&target);
  CPU_SET(emptiest, &target);
  if (sched_setaffinity(0, sizeof(target), &target) != 0) return;
  if (sched_setaffinity(0, sizeof(allowed), &allowed) != 0) {
    enabled_ = false;  // the mask was changed from outside meanwhile: what holds now is theirs
    log_warning("cannot restore the CPU affinity; ranks are not spread over the cores any more");
  }
  mesh_.segment().header().core.store(emptiest, std::memory_order_relaxed);
}

}  // namespace dmlcomm::engine
