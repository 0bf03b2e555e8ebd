// The messages of a barrier beside those of another operation, so that it brings word of every rank
// to every other one (joins_all()) whatever its kind. They stand in a stream of their own and wait
// for no other steps. The operation ends when all ranks have begun it: it takes as long as before,
// or as a barrier does, which waits for late ranks.
#pragma once

#include "schedule/op_shape.h"
#include "schedule/schedule.h"
#include "topology/topology.h"

namespace dmlcomm::schedule {

// Adds rank shape.rank's part of the barrier to its part of an operation of this shape.
void add_barrier(const OpShape& shape, const topology::Topology& topology, Schedule* schedule);

}  // namespace dmlcomm::schedule
