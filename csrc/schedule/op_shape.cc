#include "schedule/op_shape.h"

#include <algorithm>
#include <numeric>

namespace dmlcomm::schedule {
namespace {

// Of fewer some pieces may be empty, and no message carries those.
constexpr uint64_t kElementsPerRank = 64;

uint64_t sum(const std::vector<uint64_t>& counts) {
  return std::accumulate(counts.begin(), counts.end(), uint64_t{0});
}

template <typename... Text>
Status invalid(const OpShape& shape, const Text&... text) {
  return {StatusCode::invalid_argument, to_string(shape.kind), ": ", text...};
}

Status check_num_counts(const OpShape& shape, size_t counts, size_t recv_counts) {
  if (shape.counts.size() == counts && shape.recv_counts.size() == recv_counts) return {};
  return invalid(shape, "expected ", counts, " counts and ", recv_counts, " recv_counts, got ",
                 shape.counts.size(), " and ", shape.recv_counts.size());
}

}  // namespace

const char* to_string(OpKind kind) {
  switch (kind) {
#define DMLCOMM_OP_KIND_CASE(name) \
  case OpKind::name: return #name;
    DMLCOMM_OP_KINDS(DMLCOMM_OP_KIND_CASE)
#undef DMLCOMM_OP_KIND_CASE
  }
  return "unknown";
}

Status validate(const OpShape& shape) {
  if (shape.rank >= shape.num_ranks || shape.root >= shape.num_ranks) {
    return invalid(shape, "rank ", shape.rank, " or root ", shape.root, " is outside a group of ",
                   shape.num_ranks);
  }
  if (shape.element_bytes == 0) return invalid(shape, "elements of 0 bytes");
  switch (shape.kind) {
    case OpKind::all_reduce:
    case OpKind::reduce:
    case OpKind::broadcast: return check_num_counts(shape, 1, 0);
    case OpKind::all_gather:
    case OpKind::gather:
    case OpKind::scatter:
    case OpKind::reduce_scatter: return check_num_counts(shape, shape.num_ranks, 0);
    case OpKind::all_to_all: return check_num_counts(shape, shape.num_ranks, shape.num_ranks);
    case OpKind::barrier: return check_num_counts(shape, 0, 0);
    case OpKind::send:
    case OpKind::recv: break;
  }
  return invalid(shape, "not a collective");
}

bool reduces(OpKind kind) {
  return kind == OpKind::all_reduce || kind == OpKind::reduce || kind == OpKind::reduce_scatter;
}

bool all_ranks_know_counts(OpKind kind) {
  return reduces(kind) || kind == OpKind::broadcast || kind == OpKind::all_gather;
}

uint64_t own_bytes(const OpShape& shape) { return sum(shape.counts) * shape.element_bytes; }

uint64_t known_bytes(const OpShape& shape) {
  return all_ranks_know_counts(shape.kind) ? own_bytes(shape) : 0;
}

bool joins_all(const OpShape& shape) {
  const auto is_enough = [](uint64_t count) { return count >= kElementsPerRank; };
  switch (shape.kind) {
    case OpKind::barrier: return true;
    case OpKind::all_reduce: return shape.counts[0] >= kElementsPerRank * shape.num_ranks;
    case OpKind::all_gather:
    case OpKind::reduce_scatter:
      return std::all_of(shape.counts.begin(), shape.counts.end(), is_enough);
    default: return false;
  }
}

uint64_t input_elements(const OpShape& shape) {
  switch (shape.kind) {
    case OpKind::reduce: return shape.counts[0];
    case OpKind::all_gather:
    case OpKind::gather: return shape.counts[shape.rank];
    case OpKind::scatter: return shape.rank == shape.root ? sum(shape.counts) : 0;
    case OpKind::reduce_scatter:
    case OpKind::all_to_all: return sum(shape.counts);
    default: return 0;
  }
}

uint64_t output_elements(const OpShape& shape) {
  switch (shape.kind) {
    case OpKind::all_reduce:
    case OpKind::broadcast: return shape.counts[0];
    case OpKind::reduce: return shape.rank == shape.root ? shape.counts[0] : 0;
    case OpKind::all_gather: return sum(shape.counts);
    case OpKind::gather: return shape.rank == shape.root ? sum(shape.counts) : 0;
    case OpKind::scatter:
    case OpKind::reduce_scatter: return shape.counts[shape.rank];
    case OpKind::all_to_all: return sum(shape.recv_counts);
    default: return 0;
  }
}

}  // namespace dmlcomm::schedule
