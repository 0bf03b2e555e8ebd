// The messages of a barrier beside those of another operation, so that it brings word of every rank
// to every other one (joins_all()) whatever its kind. They stand in a stream of their own and wait
// for no other steps. The operation ends when all ranks have begun it: after the longer of the two.
#pragma once

#include "schedule/algorithms.h"
#include "schedule/op_shape.h"
#include "schedule/schedule.h"
#include "topology/topology.h"

namespace dmlcomm::schedule {

// The barrier of a network: one that no host has to relay for, where there is one.
const Algorithm& joining_barrier(const topology::Topology& topology);

// Adds rank shape.rank's part of the barrier to its part of an operation of this shape.
void add_barrier(const OpShape& shape, const topology::Topology& topology, Schedule* schedule);

}  // namespace dmlcomm::schedule
