#include "transport/early_messages.h"

#include <utility>

namespace dmlcomm::transport {

std::list<EarlyMessage>& EarlyMessages::of(Tag tag) {
  if (const auto found = by_tag_.find(tag); found != by_tag_.end()) return found->second;
  if (spare_.empty()) return by_tag_[tag];
  spare_.key() = tag;
  return by_tag_.insert(std::move(spare_)).position->second;
}

void EarlyMessages::add(const FrameHeader& header, std::vector<std::byte>& bytes, uint64_t order) {
  std::list<EarlyMessage>& messages = of(header.tag);
  if (taken_.empty()) taken_.emplace_back();
  EarlyMessage& added = taken_.front();
  added.header = header;
  added.bytes.swap(bytes);
  added.order = order;
  bytes.clear();
  messages.splice(messages.end(), taken_);
}

const EarlyMessage* EarlyMessages::oldest(Tag tag) const {
  const auto found = by_tag_.find(tag);
  return found == by_tag_.end() ? nullptr : &found->second.front();
}

const EarlyMessage* EarlyMessages::take(Tag tag) {
  const auto found = by_tag_.find(tag);
  if (found == by_tag_.end()) return nullptr;
  taken_.clear();
  taken_.splice(taken_.begin(), found->second, found->second.begin());
  if (found->second.empty()) spare_ = by_tag_.extract(found);
  return &taken_.front();
}

}  // namespace dmlcomm::transport
