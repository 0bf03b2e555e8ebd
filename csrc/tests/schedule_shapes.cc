#include "tests/schedule_shapes.h"

namespace dmlcomm::schedule {

std::vector<OpShape> shapes_of(OpKind kind, uint32_t root,
                               const std::vector<std::vector<uint64_t>>& between) {
  const auto num_ranks = static_cast<uint32_t>(between.size());
  std::vector<OpShape> shapes;
  for (uint32_t rank = 0; rank < num_ranks; ++rank) {
    OpShape shape;
    shape.kind = kind;
    shape.rank = rank;
    shape.num_ranks = num_ranks;
    shape.root = root;
    switch (kind) {
      case OpKind::barrier: break;
      case OpKind::all_reduce:
      case OpKind::reduce:
      case OpKind::broadcast: shape.counts = {between[0][0]}; break;
      case OpKind::all_to_all:
        shape.counts = between[rank];
        for (uint32_t p = 0; p < num_ranks; ++p) shape.recv_counts.push_back(between[p][rank]);
        break;
      default: shape.counts = between[0]; break;
    }
    shapes.push_back(shape);
  }
  return shapes;
}

std::vector<OpShape> even_shapes(OpKind kind, uint32_t num_ranks, uint32_t root, uint64_t count) {
  const std::vector<uint64_t> row(num_ranks, count);
  return shapes_of(kind, root, std::vector<std::vector<uint64_t>>(num_ranks, row));
}

std::vector<OpShape> uneven_shapes(OpKind kind, uint32_t num_ranks, uint32_t root,
                                   std::mt19937* random) {
  std::vector<std::vector<uint64_t>> between(num_ranks, std::vector<uint64_t>(num_ranks));
  for (auto& row : between) {
    for (uint64_t& count : row) count = (*random)() % 3 == 0 ? 0 : (*random)() % 31;
  }
  return shapes_of(kind, root, between);
}

}  // namespace dmlcomm::schedule
