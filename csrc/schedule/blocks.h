// Blocks: a long vector as a row of short ones, each with a schedule of its own, few at a time.
//
// Where the ranks of one host talk over TCP, the kernel's copies are the price, and a copy of what
// is in the cache takes half as long. In blocks, what comes in is still there when it is combined,
// and the result when it is passed on. A block begins when the one `kBlocksAtATime` before it is
// complete on this rank. So there are never more at a time, and windows stay few.
#pragma once

#include <cstdint>

#include "schedule/op_shape.h"
#include "schedule/schedule.h"
#include "topology/topology.h"

namespace dmlcomm::schedule {

constexpr uint32_t kBlocksAtATime = 2;

// Elements of a block of an all_reduce in which every rank has one part of each block; 0 where the
// vector should stay whole.
uint64_t block_elements(const OpShape& shape, const topology::Topology& topology);

// The schedule of an all_reduce of `shape`, block by block: `generate` makes those of the blocks.
// All ranks must choose the same length, at least 1.
Schedule in_blocks(const OpShape& shape, uint64_t elements, Schedule (*generate)(const OpShape&));

}  // namespace dmlcomm::schedule
