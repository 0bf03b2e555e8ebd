// CollectiveHistory: the last collectives of this rank, and those that only peers have begun. It
// finds out which ranks disagree; the engine makes the error.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "transport/frame.h"

namespace dmlcomm::engine {

class CollectiveHistory {
 public:
  // In collective `sequence` this rank does one thing, and `peer` another.
  struct Disagreement {
    uint64_t sequence;
    transport::OpInfo ours;
    int peer;
    transport::OpInfo theirs;
  };

  // This rank begins a collective; those before `oldest` have ended.
  std::optional<Disagreement> begin(uint64_t sequence, const transport::OpInfo& ours,
                                    uint64_t oldest);
  // A peer's view of a collective, which may not have begun here, or be long past.
  std::optional<Disagreement> hear(int peer, uint64_t sequence, const transport::OpInfo& theirs);
  // The last collective that has begun, with its sequence number; 0 before the first.
  const std::pair<uint64_t, transport::OpInfo>& last_begun() const {
    return begun_[last_begun_ % kSize];
  }

 private:
  // Older collectives are not compared any more. More than ranks plan ahead (tuner.cc).
  static constexpr size_t kSize = 1024;

  struct Early {
    int peer;
    transport::OpInfo op;
  };

  // By sequence number modulo the size; number 0 is none.
  std::vector<std::pair<uint64_t, transport::OpInfo>> begun_{kSize};
  uint64_t last_begun_ = 0;
  using ByNumber = std::map<uint64_t, std::vector<Early>>;

  std::vector<Early>& early_of(uint64_t sequence);

  ByNumber early_;             // by sequence number; one of each peer
  ByNumber::node_type spare_;  // one that has been taken out, with its memory, or null
};

}  // namespace dmlcomm::engine
