#include "engine/local/placement.h"

#include <optional>

#include "base/clock.h"
#include "base/cores.h"
#include "base/log.h"

namespace dmlcomm::engine {
namespace {

// A move costs about 20 us; where the kernel has other reasons it shall win.
constexpr int64_t kMinMoveIntervalNs = 10 * kNsPerMs;

// The core of this process before which so many others stand, or -1.
int nth_core(int n) {
  const std::optional<cpu_set_t> cores = allowed_cores();
  for (int core = 0; cores && core < CPU_SETSIZE; ++core) {
    if (CPU_ISSET(core, &*cores) && n-- == 0) return core;
  }
  return -1;
}

}  // namespace

Placement::Placement(transport::Mesh& mesh, int rank, int num_ranks, int ranks_per_home)
    : mesh_(mesh),
      rank_(rank),
      num_ranks_(num_ranks),
      home_(ranks_per_home > 0 ? nth_core(rank / ranks_per_home) : -1),
      enabled_(ranks_per_home == 0 || home_ >= 0) {}

void Placement::settle() {
  const int core = sched_getcpu();
  if (core < 0 || !enabled_ || core == home_) return;
  if (home_ < 0) {
    auto& own = mesh_.segment().header().core;
    if (own.load(std::memory_order_relaxed) != core) own.store(core, std::memory_order_relaxed);
    if (!leaves(core)) return;
  }
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

// `core` itself where it is not worth it to leave it.
int Placement::emptiest_core(int core, const cpu_set_t& allowed) const {
  std::map<int, int> counts = ranks_per_core();
  int emptiest = core;
  for (int other = 0; other < CPU_SETSIZE; ++other) {
    if (CPU_ISSET(other, &allowed) && counts[other] < counts[emptiest]) emptiest = other;
  }
  return counts[core] - counts[emptiest] < 2 ? core : emptiest;
}

void Placement::move_from(int core) {
  const std::optional<cpu_set_t> allowed = allowed_cores();
  if (!allowed) return;
  const int best = home_ >= 0 ? home_ : emptiest_core(core, *allowed);
  if (best == core || !CPU_ISSET(best, &*allowed)) return;
  cpu_set_t target;
  CPU_ZERO(&target);
  CPU_SET(best, &target);
  if (sched_setaffinity(0, sizeof(target), &target) != 0) return;
  if (sched_setaffinity(0, sizeof(*allowed), &*allowed) != 0) {
    enabled_ = false;  // the mask was changed from outside meanwhile: what holds now is theirs
    log_warning("cannot restore the CPU affinity; ranks are not spread over the cores any more");
  }
  mesh_.segment().header().core.store(best, std::memory_order_relaxed);
}

}  // namespace dmlcomm::engine
