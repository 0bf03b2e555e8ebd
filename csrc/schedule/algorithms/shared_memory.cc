// Two ways through the memory of one host. They are no schedules: the engine carries them out on
// its board (engine/local/board.h), and no message is sent.
//
// slots: each rank copies what the others need to its slot in shared memory, and they read it
// there: two copies, no system call. In one round every rank adds up what it needs. An all_reduce
// may take two: each rank adds up its N-th, and fetches the others' in the second.
//
// peer_memory: slots hold addresses, and ranks read and write each other's tensors, in memory that
// all of them map or else by system calls: one copy or none, and two rounds. The work is dealt out
// evenly (engine/local/direct_transfers.h).
//
// Thresholds were measured, since the closed forms are too rough to tell the two apart. Where ranks
// share memory, one of them is better than any messages.
#include "schedule/algorithms/shared_memory.h"

#include <algorithm>
#include <cstdint>

namespace dmlcomm::schedule {
namespace {

using topology::SharedMemory;

// If ranks reach each other's memory, data goes through the slots if a rank reads at most
// (N - 1) times this from each other one. Two copies in the cache cost less than a system call and
// a second wait, and the more ranks there are, the more system calls and waits. See
// copies_to_slots().
constexpr uint64_t kSlotReadBytes = 16 * 1024;

// All-reduces up to this size take one round, in which every rank adds everything up for itself: it
// spares the second wait, and costs N - 1 times the reading.
constexpr uint64_t kOneRoundBytes = 16 * 1024;

// Until a rank sees what another one has written, while it polls.
constexpr double kWaitSeconds = 1e-6;

// Whether the data fits into the slots, and no rank reads more than `max_read` from another's.
bool fits(const OpShape& shape, const SharedMemory& memory, uint64_t max_read) {
  const uint64_t room = memory.slot_bytes, most = std::min(room, max_read);
  const uint64_t bytes = known_bytes(shape);
  switch (shape.kind) {
    case OpKind::barrier: return true;
    case OpKind::all_reduce:
    case OpKind::reduce_scatter: return bytes <= room && bytes / shape.num_ranks <= max_read;
    case OpKind::reduce:
    case OpKind::broadcast: return bytes <= most;
    case OpKind::all_gather:
      return *std::max_element(shape.counts.begin(), shape.counts.end()) * shape.element_bytes <=
             most;
    default: return false;  // sizes that not every rank knows
  }
}

// Whether it is small enough for the slots to be worth it.
bool is_small(const OpShape& shape, const SharedMemory& memory) {
  return fits(shape, memory,
              memory.reaches_peers ? kSlotReadBytes * (shape.num_ranks - 1) : UINT64_MAX);
}

int rounds_of_all_reduce(uint64_t bytes) { return bytes > kOneRoundBytes ? 2 : 1; }

// Of the busiest rank: what it copies and combines, in bytes.
double slot_bytes_touched(OpKind kind, double ranks, double bytes) {
  const double own = bytes / ranks, others = bytes - own;
  switch (kind) {
    case OpKind::all_reduce:
      if (rounds_of_all_reduce(static_cast<uint64_t>(bytes)) == 1) return ranks * bytes;
      return 3 * others + own;
    case OpKind::reduce: return (ranks - 1) * bytes;
    case OpKind::broadcast: return 2 * bytes;
    case OpKind::all_gather: return bytes + own;
    case OpKind::reduce_scatter: return 2 * others;
    default: return 0;
  }
}

// The same of peer_memory: what it moves from or to another rank's memory.
double peer_bytes_moved(OpKind kind, double ranks, double bytes) {
  const double own = bytes / ranks, others = bytes - own;
  switch (kind) {
    case OpKind::all_reduce: return 2 * others;
    case OpKind::reduce:
    case OpKind::broadcast: return bytes;
    case OpKind::gather:
    case OpKind::scatter: return own;
    default: return others;
  }
}

}  // namespace

bool fits_slots(const OpShape& shape, const SharedMemory& memory) {
  return fits(shape, memory, UINT64_MAX);
}

bool slots_wins(const OpShape& shape, const SharedMemory& memory) {
  return is_small(shape, memory) && !copies_to_slots(shape, memory);
}

int rounds_of_slots(const OpShape& shape) {
  return shape.kind == OpKind::all_reduce ? rounds_of_all_reduce(known_bytes(shape)) : 1;
}

bool peer_memory_wins(const OpShape& shape, const SharedMemory& memory) {
  return !slots_wins(shape, memory);
}

// An all_reduce whose tensor all ranks map needs no copies, and the same number of rounds as in the
// slots. (4 ranks, 64 KiB: 55 us instead of 87; 106 instead of 97 where all tensors have to be
// copied.)
bool copies_to_slots(const OpShape& shape, const SharedMemory& memory) {
  if (shape.kind != OpKind::all_reduce || !memory.reaches_peers) return false;
  const uint64_t bytes = known_bytes(shape);
  return bytes >= memory.least_mapped_bytes && bytes <= memory.most_mapped_bytes &&
         is_small(shape, memory);
}

double slots_seconds(OpKind kind, const EstimateTerms& terms) {
  const auto bytes = static_cast<uint64_t>(terms.bytes);
  const int rounds = kind == OpKind::all_reduce ? rounds_of_all_reduce(bytes) : 1;
  return rounds * kWaitSeconds +
         terms.gamma * slot_bytes_touched(kind, terms.num_ranks, terms.bytes);
}

// Memory that all ranks map is combined in place, without system calls.
double peer_memory_seconds(OpKind kind, const EstimateTerms& terms) {
  const SharedMemory& memory = terms.topology->memory;
  const auto least = static_cast<double>(memory.least_mapped_bytes);
  const bool is_mapped = memory.most_mapped_bytes > 0 && terms.bytes >= least;
  const double combined = reduces(kind) ? terms.bytes - terms.bytes / terms.num_ranks : 0;
  const double moved = peer_bytes_moved(kind, terms.num_ranks, terms.bytes);
  return 2 * (is_mapped ? kWaitSeconds : terms.alpha) + terms.gamma * combined +
         terms.beta_all * (is_mapped ? moved - combined : moved);
}

}  // namespace dmlcomm::schedule
