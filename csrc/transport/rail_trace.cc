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
  is_on_.store(true);
}

std::vector<RailRange> RailTrace::stop() {
  std::lock_guard lock(mutex_);
  is_on_.store(false);
  std::vector<RailRange> found;
  for (auto& [key, range] : std::exchange(ranges_, {})) found.push_back(std::move(range));
  return found;
}

void RailTrace::note(const std::string& interface, bool is_sent, const FrameHeader& header,
                     size_t bytes) {
  if (header.kind != FrameKind::data || bytes == 0) return;
  const uint64_t operation = is_point_to_point(header.tag) ? header.tag : sequence_of(header.tag);
  const int64_t now = now_ns();
  std::lock_guard lock(mutex_);
  if (!is_on_.load()) return;
  Key key(interface, is_sent, header.job_id, operation);
  auto place = ranges_.find(key);
  if (place == ranges_.end()) {
    if (ranges_.size() >= kMost) return;
    RailRange range{interface, is_sent, header.job_id, header.tag, header.op, 0, now, now};
    place = ranges_.emplace(std::move(key), std::move(range)).first;
  }
  place->second.bytes += bytes;
  place->second.end_ns = now;
}

}  // namespace dmlcomm::transport
