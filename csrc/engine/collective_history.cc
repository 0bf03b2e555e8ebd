#include "engine/collective_history.h"

namespace dmlcomm::engine {

using transport::OpInfo;

std::optional<CollectiveHistory::Disagreement> CollectiveHistory::begin(uint64_t sequence,
                                                                        const OpInfo& ours) {
  begun_[sequence % kSize] = {sequence, ours};
  for (const Early& early : early_) {
    if (early.sequence != static_cast<uint32_t>(sequence) || early.op == ours) continue;
    return Disagreement{early.sequence, ours, early.peer, early.op};
  }
  std::erase_if(early_, [&](const Early& e) { return e.sequence <= sequence; });
  return std::nullopt;
}

std::optional<CollectiveHistory::Disagreement> CollectiveHistory::hear(int peer, uint32_t sequence,
                                                                       const OpInfo& theirs) {
  const auto& [known, ours] = begun_[sequence % kSize];
  if (static_cast<uint32_t>(known) == sequence && known != 0) {
    if (ours == theirs) return std::nullopt;
    return Disagreement{sequence, ours, peer, theirs};
  }
  if (sequence > static_cast<uint32_t>(known)) early_.push_back({sequence, peer, theirs});
  return std::nullopt;
}

}  // namespace dmlcomm::engine
