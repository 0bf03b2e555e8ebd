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

Placement::Placement(Board& board, int ranks_per_home)
    : board_(board),
      home_(ranks_per_home > 0 ? nth_core(board.rank() / ranks_per_home) : -1),
      enabled_(ranks_per_home == 0 || home_ >= 0) {}

void Placement::settle() {
  const int core = sched_getcpu();
  if (core < 0 || !enabled_ || core == home_) return;
  if (home_ < 0) {
    auto& own = board_.header().core_plus_one;
    if (own.load(std::memory_order_relaxed) != core + 1) {
      own.store(core + 1, std::memory_order_relaxed);
    }
    if (!leaves(core)) return;
  }
  const int64_t now = now_ns();
  if (now < next_move_ns_) return;
  next_move_ns_ = now + kMinMoveIntervalNs;
  move_from(core);
}

// Of the ranks on a core only the highest moves: they shall not all follow the same thought.
bool Placement::leaves(int core) const {
  for (int rank = board_.rank() + 1; rank < board_.num_ranks(); ++rank) {
    if (core_of(rank) == core) return false;
  }
  return true;
}

int Placement::core_of(int rank) const {
  return board_.header_of(rank).core_plus_one.load(std::memory_order_relaxed) - 1;
}

std::map<int, int> Placement::ranks_per_core() const {
  std::map<int, int> counts;
  for (int rank = 0; rank < board_.num_ranks(); ++rank) {
    if (const int core = core_of(rank); core >= 0) ++counts[core];
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
  board_.header().core_plus_one.store(best + 1, std::memory_order_relaxed);
}

}  // namespace dmlcomm::engine
