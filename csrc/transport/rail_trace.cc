#include "transport/rail_trace.h"

#include <utility>

#include "base/clock.h"

namespace dmlcomm::transport {

RailTrace& RailTrace::instance() {
  static auto* trace = new RailTrace;  // groups may live longer than static destructors run
  return *trace;
}

void RailTrace::start() {
  std::lock_guard lock(mutex_);
  ranges_.clear();
  open_.clear();
  is_on_.store(true);
}

std::vector<RailRange> RailTrace::stop() {
  std::lock_guard lock(mutex_);
  is_on_.store(false);
  open_.clear();
  return std::exchange(ranges_, {});
}

void RailTrace::note(const std::string& interface, const void* connection, bool is_sent,
                     const FrameHeader& header, bool is_first, size_t bytes) {
  if (header.kind != FrameKind::data || bytes == 0) return;
  const bool is_message = is_point_to_point(header.tag);
  const uint64_t operation = is_message ? header.tag : sequence_of(header.tag);
  const int64_t now = now_ns();
  std::lock_guard lock(mutex_);
  if (!is_on_.load()) return;
  const Key key(interface, is_sent, header.job_id, operation, is_message ? connection : nullptr);
  auto place = open_.find(key);
  const bool is_next_message = is_message && is_first && place != open_.end() &&
                               (header.offset <= place->second.offset ||
                                header.message_bytes != place->second.message_bytes);
  if (place == open_.end() || is_next_message) {
    if (ranges_.size() >= kMost) return;
    place = open_.insert_or_assign(key, Open{ranges_.size(), header.message_bytes}).first;
    ranges_.push_back({interface, is_sent, header.job_id, header.tag, header.op, 0, now, now});
  }
  place->second.offset = header.offset;
  RailRange& range = ranges_[place->second.range];
  range.bytes += bytes;
  range.end_ns = now;
}

}  // namespace dmlcomm::transport
