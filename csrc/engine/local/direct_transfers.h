// The transfers of each rank of one host between the tensors of all, when an operation goes
// straight from tensor to tensor. A pure function of the regions that the ranks have shown each
// other.
//
// Work is dealt out evenly, and every byte that is fetched is used while it is in the cache:
//   all_reduce, reduce  rank r adds up part r of the vector, and writes it to all (to the root)
//   reduce_scatter      rank r adds up its piece
//   broadcast           rank r fetches part r from the root, and writes it to the others
//   all_gather, gather  rank r writes its piece to the others (to the root)
//   scatter, all_to_all rank r fetches its pieces
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/status.h"
#include "engine/op_state.h"

namespace dmlcomm::engine {

// A piece of memory that a rank lets the others read or write.
struct Region {
  uint64_t address = 0;  // from the beginning of the rank's slot, if it is there
  uint64_t bytes = 0;
  uint64_t in_slot = 0;  // 1: it is a copy in the slot of the first round
};

// How many regions each rank shows the others of such an operation, at most.
size_t max_regions(schedule::OpKind kind, size_t num_ranks);
// The regions of an operation that one rank shows to the others.
std::vector<Region> shown_regions(const OpRequest& request, bool is_root);

// Whether the others write to the region with this index, or only read it.
bool is_written_by_others(const OpRequest& request, bool is_root, size_t region);

// Memory of a rank, this one or another.
struct Place {
  int rank = 0;
  uint64_t address = 0;
  bool in_slot = false;       // as of a region
  std::byte* here = nullptr;  // where this process has it, too
};

// One run of bytes. Several sources are reduced, in their order.
struct Transfer {
  uint64_t bytes = 0;
  std::vector<Place> sources;
  std::byte* result = nullptr;  // where this rank keeps it; null: nowhere
  std::vector<Place> targets;   // of other ranks, that get it too
};

// What `rank` has to do; shown[r] is what rank r has shown. `mismatch` if sizes do not fit.
Result<std::vector<Transfer>> transfers_of(const OpRequest& request, int rank,
                                           const std::vector<std::vector<Region>>& shown);

}  // namespace dmlcomm::engine
