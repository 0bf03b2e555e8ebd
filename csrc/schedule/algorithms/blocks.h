// Blocks: a long vector as a row of short ones, each with a schedule of its own, few at a time.
//
// If the ranks of one host talk over TCP, the kernel's copies are the price, and a copy from the
// cache takes half as long. In blocks, received data is still in the cache when it is combined, and
// the result when it is passed on. A block begins when the one `kBlocksAtATime` before it is
// complete on this rank. So there are never more at a time: a rank's messages of a block wait for
// its peers' part in the block two before, so windows stay few as well. Ranks begin steps in the
// order in which they become ready. So messages between two of them are written in the order of
// the blocks, and none waits behind one that a rank cannot take yet.
#pragma once

#include <cstdint>
#include <functional>

#include "schedule/op_shape.h"
#include "schedule/schedule.h"
#include "topology/topology.h"

namespace dmlcomm::schedule {

constexpr uint32_t kBlocksAtATime = 2;

// Elements of a block of an all_reduce that cuts each block in so many parts; 0 where the vector
// should stay whole.
uint64_t block_elements(const OpShape& shape, const topology::Topology& topology,
                        uint32_t num_parts);

// The schedule of an all_reduce of `shape`, block by block, or of the whole vector where it stays
// so: `generate` makes that of each.
Schedule in_blocks(const OpShape& shape, const topology::Topology& topology, uint32_t num_parts,
                   const std::function<Schedule(const OpShape&)>& generate);

}  // namespace dmlcomm::schedule
