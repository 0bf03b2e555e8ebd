// OpShape: one collective before it runs: facts that all ranks agree on, and those of one rank.
#pragma once

#include <cstdint>
#include <vector>

#include "base/status.h"

namespace dmlcomm::schedule {

// One list makes enum and names. The numbers are part of the wire format (OpInfo): append only.
#define DMLCOMM_OP_KINDS(X) \
  X(all_reduce)             \
  X(reduce)                 \
  X(broadcast)              \
  X(all_gather)             \
  X(gather)                 \
  X(scatter)                \
  X(reduce_scatter)         \
  X(all_to_all)             \
  X(barrier)                \
  X(send)                   \
  X(recv)

enum class OpKind : uint8_t {
#define DMLCOMM_OP_KIND_ENUM(name) name,
  DMLCOMM_OP_KINDS(DMLCOMM_OP_KIND_ENUM)
#undef DMLCOMM_OP_KIND_ENUM
};

inline constexpr OpKind kOpKinds[] = {
#define DMLCOMM_OP_KIND_ITEM(name) OpKind::name,
    DMLCOMM_OP_KINDS(DMLCOMM_OP_KIND_ITEM)
#undef DMLCOMM_OP_KIND_ITEM
};

const char* to_string(OpKind kind);

// Buffers of each kind, in elements (N ranks, this rank r, `counts` has N entries where used):
//   all_reduce, broadcast   output: counts[0], in place
//   reduce                  input: counts[0]; output: counts[0] on the root only, may be the input
//   all_gather              input: counts[r]; output: sum(counts), rank after rank
//   gather                  input: counts[r]; output: sum(counts) on the root only
//   scatter                 input: sum(counts) on the root only; output: counts[r]
//   reduce_scatter          input: sum(counts); output: counts[r]; the input is preserved
//   all_to_all              input: sum(counts), piece p goes to rank p;
//                           output: sum(recv_counts), piece p comes from rank p
//   barrier                 nothing
// No range of a step crosses the border between two ranks' pieces: they may be separate tensors.
struct OpShape {
  OpKind kind = OpKind::all_reduce;
  uint32_t rank = 0;
  uint32_t num_ranks = 1;
  uint32_t root = 0;
  uint32_t element_bytes = 1;  // for the cost model and for alignment of cuts; 1 for data movement
  std::vector<uint64_t> counts;
  std::vector<uint64_t> recv_counts;  // all_to_all only

  bool operator==(const OpShape&) const = default;
};

// `invalid_argument` for a shape that no generator takes: a rank or root outside the group, or a
// number of counts that the kind does not have.
Status validate(const OpShape& shape);

// Whether the operation combines what ranks contribute.
bool reduces(OpKind kind);

// Whether each rank knows the counts of all others: not of gather, scatter and all_to_all.
bool all_ranks_know_counts(OpKind kind);

// Bytes of all counts together where every rank knows them; 0 where some do not. `shape` must be
// valid.
uint64_t known_bytes(const OpShape& shape);

// Bytes of all counts together as this rank knows them. `shape` must be valid.
uint64_t own_bytes(const OpShape& shape);

// Whether messages bring word of every rank to every other one before such an operation ends, in
// any algorithm. Ranks agree on the answer.
bool joins_all(const OpShape& shape);

// Elements of this rank's buffers; 0 where it has none. `shape` must be valid.
uint64_t input_elements(const OpShape& shape);
uint64_t output_elements(const OpShape& shape);

}  // namespace dmlcomm::schedule
