#include "engine/collective_history.h"

#include <algorithm>

namespace dmlcomm::engine {

using transport::OpInfo;

std::optional<CollectiveHistory::Disagreement> CollectiveHistory::begin(uint64_t sequence,
                                                                        const OpInfo& ours,
                                                                        uint64_t oldest) {
  begun_[sequence % kSize] = {sequence, ours};
  last_begun_ = std::max(last_begun_, sequence);
  if (early_.empty()) return std::nullopt;
  if (const auto found = early_.find(sequence); found != early_.end()) {
    for (const Early& early : found->second) {
      if (early.op != ours) return Disagreement{sequence, ours, early.peer, early.op};
    }
    spare_ = early_.extract(found);
  }
  early_.erase(early_.begin(), early_.lower_bound(oldest));
  return std::nullopt;
}

std::vector<CollectiveHistory::Early>& CollectiveHistory::early_of(uint64_t sequence) {
  const auto at = early_.lower_bound(sequence);
  if (at != early_.end() && at->first == sequence) return at->second;
  if (spare_.empty()) return early_.try_emplace(at, sequence)->second;
  spare_.key() = sequence;
  spare_.mapped().clear();
  return early_.insert(at, std::move(spare_))->second;
}

std::optional<CollectiveHistory::Disagreement> CollectiveHistory::hear(int peer, uint64_t sequence,
                                                                       const OpInfo& theirs) {
  const auto& [known, ours] = begun_[sequence % kSize];
  if (known == sequence) {
    if (ours == theirs) return std::nullopt;
    return Disagreement{sequence, ours, peer, theirs};
  }
  if (sequence < known) return std::nullopt;
  std::vector<Early>& early = early_of(sequence);
  const auto is_same = [&](const Early& e) { return e.peer == peer && e.op == theirs; };
  if (std::none_of(early.begin(), early.end(), is_same)) early.push_back({peer, theirs});
  return std::nullopt;
}

}  // namespace dmlcomm::engine
