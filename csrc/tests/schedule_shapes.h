// Shapes of all ranks of one collective, for tests.
#pragma once

#include <cstdint>
#include <random>
#include <vector>

#include "schedule/op_shape.h"

namespace dmlcomm::schedule {

// All ranks' shapes; `between[a][b]` is the number of elements from rank a to rank b, of which
// kinds with one count use [0][0], and kinds with one count per rank use row 0.
std::vector<OpShape> shapes_of(OpKind kind, uint32_t root,
                               const std::vector<std::vector<uint64_t>>& between);

// The same count everywhere.
std::vector<OpShape> even_shapes(OpKind kind, uint32_t num_ranks, uint32_t root, uint64_t count);

// Counts from 0 to 30, every third one 0.
std::vector<OpShape> uneven_shapes(OpKind kind, uint32_t num_ranks, uint32_t root,
                                   std::mt19937* random);

}  // namespace dmlcomm::schedule
