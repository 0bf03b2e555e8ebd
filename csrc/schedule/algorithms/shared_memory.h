// slots and peer_memory, the algorithms of ranks that share one host's memory; see
// shared_memory.cc: the shapes that they can carry, those that they should carry, and their price.
//
// All ranks have to come to the same answers: these depend on facts that all ranks know.
#pragma once

#include "schedule/op_shape.h"
#include "schedule/price/estimate.h"
#include "topology/topology.h"

namespace dmlcomm::schedule {

bool fits_slots(const OpShape& shape, const topology::SharedMemory& memory);
bool slots_wins(const OpShape& shape, const topology::SharedMemory& memory);

// How often the ranks wait for each other in `slots`.
int rounds_of_slots(const OpShape& shape);

bool peer_memory_wins(const OpShape& shape, const topology::SharedMemory& memory);

// Whether `peer_memory` copies a tensor to its rank's slot where it is not in memory that all map.
bool copies_to_slots(const OpShape& shape, const topology::SharedMemory& memory);

double slots_seconds(OpKind kind, const EstimateTerms& terms);
double peer_memory_seconds(OpKind kind, const EstimateTerms& terms);

}  // namespace dmlcomm::schedule
