#include "engine/local/slot_runner.h"

#include <cstring>
#include <numeric>
#include <vector>

#include "kernels/reduce.h"
#include "topology/partition.h"

namespace dmlcomm::engine {

using schedule::OpKind;

// The result of the first round of two is in the slot of the second already.
void SlotRunner::put() {
  if (round_of_op() == 2) return;
  if (num_rounds_ == 2 || request().shape.kind == OpKind::reduce_scatter) {
    put_parts_of_others();
  } else {
    put_input();
  }
  if (request().shape.kind == OpKind::all_gather) keep_own_part();
}

// The part of `rank`: an even cut of an all-reduce, a piece as the caller named it, or
// everything.
SlotRunner::Part SlotRunner::part_of(int rank) const {
  const size_t element = size_of(request().dtype);
  const auto& counts = request().shape.counts;
  const auto r = static_cast<size_t>(rank);
  if (request().shape.kind == OpKind::reduce_scatter ||
      request().shape.kind == OpKind::all_gather) {
    const uint64_t before = std::accumulate(counts.begin(), counts.begin() + rank, uint64_t{0});
    return {before * element, counts[r] * element};
  }
  if (num_rounds_ == 1) return {0, request().output.bytes()};
  const topology::Partition cuts(counts[0], static_cast<uint32_t>(num_ranks()),
                                 static_cast<uint32_t>(element));
  return {cuts.begin(static_cast<uint32_t>(rank)) * element,
          cuts.length(static_cast<uint32_t>(rank)) * element};
}

void SlotRunner::put_input() {
  const OpKind kind = request().shape.kind;
  if (kind == OpKind::barrier || (kind == OpKind::broadcast && !is_root()) ||
      (kind == OpKind::reduce && is_root())) {
    return;
  }
  const bool in_place = kind == OpKind::all_reduce || kind == OpKind::broadcast;
  const BufferView& from = in_place ? request().output : request().input;
  if (from.bytes() > 0) std::memcpy(own_slot(), from.at(0, from.bytes()), from.bytes());
}

void SlotRunner::put_parts_of_others() {
  const bool scatters = request().shape.kind == OpKind::reduce_scatter;
  const BufferView& from = scatters ? request().input : request().output;
  for (int rank = 0; rank < num_ranks(); ++rank) {
    const Part part = part_of(rank);
    if (rank == this->rank() || part.bytes == 0) continue;
    std::memcpy(own_slot() + part.offset, from.at(part.offset, part.bytes), part.bytes);
  }
}

// An all-gather's own part goes straight from input to output, unless it is there already.
void SlotRunner::keep_own_part() {
  const Part part = part_of(rank());
  if (part.bytes == 0) return;
  std::byte* to = request().output.at(part.offset, part.bytes);
  const std::byte* from = request().input.at(0, part.bytes);
  if (to != from) std::memmove(to, from, part.bytes);
}

Status SlotRunner::take(int rank) {
  const OpKind kind = request().shape.kind;
  if (combines() || kind == OpKind::barrier) return Status();
  const bool is_broadcast = kind == OpKind::broadcast;
  if (is_broadcast && rank != static_cast<int>(request().shape.root)) return Status();
  const Part part = is_broadcast ? Part{0, request().output.bytes()} : part_of(rank);
  if (part.bytes == 0) return Status();
  // An all-gather's slot holds the sender's part alone, the others everything.
  const std::byte* from =
      board().slot_of(rank, round()) + (kind == OpKind::all_gather ? 0 : part.offset);
  std::memcpy(request().output.at(part.offset, part.bytes), from, part.bytes);
  return Status();
}

Status SlotRunner::all_taken() {
  if (combines()) combine();
  if (num_rounds_ == 2 && round_of_op() == 1) {
    enter();
  } else {
    finish();
  }
  return Status();
}

// Adds up in rank order: the own part, or everything.
void SlotRunner::combine() {
  const OpKind kind = request().shape.kind;
  if (kind == OpKind::reduce && !is_root()) return;
  const Part part = kind == OpKind::reduce ? Part{0, request().output.bytes()} : part_of(rank());
  if (part.bytes == 0) return;
  const BufferView& own = kind == OpKind::all_reduce ? request().output : request().input;
  std::vector<const void*> sources;
  sources.reserve(static_cast<size_t>(num_ranks()));
  for (int rank = 0; rank < num_ranks(); ++rank) {
    sources.push_back(rank == this->rank() ? own.at(part.offset, part.bytes)
                                           : board().slot_of(rank, round()) + part.offset);
  }
  std::byte* result =
      request().output.at(kind == OpKind::reduce_scatter ? 0 : part.offset, part.bytes);
  // The result of the first round of two goes to the slot of the second, where the others fetch it.
  std::byte* shared = num_rounds_ == 2 ? board().own_slot(round() + 1) + part.offset : result;
  kernels::reduce(shared, sources.data(), sources.size(), part.bytes / size_of(request().dtype),
                  request().dtype, request().reduce_op, divisor());
  if (shared != result) std::memcpy(result, shared, part.bytes);
}

}  // namespace dmlcomm::engine
