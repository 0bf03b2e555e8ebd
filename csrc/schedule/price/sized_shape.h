// The shape of an operation of which only the size is known, for people who plan.
#pragma once

#include <cstdint>

#include "schedule/op_shape.h"

namespace dmlcomm::schedule {

inline bool has_one_count(OpKind kind) {
  return kind == OpKind::all_reduce || kind == OpKind::reduce || kind == OpKind::broadcast;
}

// `bytes` as in compare() of pricing.h. The root is rank 0.
inline OpShape sized_shape(OpKind kind, uint32_t num_ranks, uint64_t bytes,
                           uint32_t element_bytes) {
  OpShape shape;
  shape.kind = kind;
  shape.num_ranks = num_ranks;
  shape.element_bytes = element_bytes;
  const uint64_t elements = bytes / element_bytes;
  if (has_one_count(kind)) shape.counts = {elements};
  if (has_one_count(kind) || kind == OpKind::barrier) return shape;
  for (uint32_t rank = 0; rank < num_ranks; ++rank) {
    shape.counts.push_back(elements / num_ranks + (rank < elements % num_ranks ? 1 : 0));
  }
  return shape;
}

// Of all_to_all, whose ranks all send the same to rank p, that differs by rank.
inline OpShape shape_of_rank(OpShape shape, uint32_t rank) {
  shape.rank = rank;
  if (shape.kind == OpKind::all_to_all) {
    shape.recv_counts.assign(shape.num_ranks, shape.counts[rank]);
  }
  return shape;
}

}  // namespace dmlcomm::schedule
