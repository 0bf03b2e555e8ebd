// The messages of a probe before those of an operation, so that rails show their rates though the
// operation is small. Each rank sends so many bytes over each rail to the next host there, where
// the shapers of slow networks let through a part of that at once. The operation's own steps wait
// for them.
#pragma once

#include <cstdint>

#include "schedule/op_shape.h"
#include "schedule/schedule.h"
#include "topology/topology.h"

namespace dmlcomm::schedule {

// Per rail: as many as a meter needs to know a rate (RailMeter).
constexpr uint64_t kProbeBytes = 256 * 1024;

// Whether there are several hosts, with the same number of ranks: all send as much as they receive.
bool can_probe(const topology::Topology& topology);

// Adds rank shape.rank's part of the probe to its part of an operation of this shape. can_probe().
void add_probe(const OpShape& shape, const topology::Topology& topology, Schedule* schedule);

}  // namespace dmlcomm::schedule
