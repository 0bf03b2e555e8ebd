#include "transport/lane_set.h"

#include <algorithm>
#include <utility>

#include "base/clock.h"

namespace dmlcomm::transport {
namespace {

// A part of a striped message: large enough to be worth a system call, and small enough that the
// slowest lane is not the last to finish.
constexpr size_t kMaxPartBytes = 128 * 1024;
constexpr size_t kMinPartBytes = 16 * 1024;
// A small message of a collective takes any rail from this size on. Smaller ones leave together on
// one, in one system call.
constexpr size_t kLeastSpreadBytes = 4 * 1024;
// One part in so many is the oldest operation's.
constexpr size_t kPartsPerOldest = 16;

}  // namespace

LaneSet::LaneSet(const Shape& shape, RailCounters* counters, RailMeter* meters, LaneReader* reader)
    : shape_(shape),
      counters_(counters),
      meters_(meters),
      reader_(reader),
      lanes_(shape.num_rails * shape.lanes_per_rail),
      limits_credit_(shape.credit_bytes > 0) {}

void LaneSet::attach(size_t index, std::unique_ptr<Channel> channel) {
  RailMeter* const meter = meters_ == nullptr ? nullptr : &meters_[index % shape_.num_rails];
  lanes_[index] = std::make_unique<Lane>(std::move(channel), shape_.job_id, has_many_rails(),
                                         &counters_of(index), meter, reader_);
  if (limits_credit_) lanes_[index]->limit_credit(shape_.credit_bytes);
  place_orphaned();
}

Lane* LaneSet::any() const {
  for (const auto& lane : lanes_) {
    if (lane) return lane.get();
  }
  return nullptr;
}

void LaneSet::number(OutFrame& frame) {
  if (has_many_rails()) frame.header.number = next_number_++;
}

size_t LaneSet::num_alive() const {
  return static_cast<size_t>(std::count_if(lanes_.begin(), lanes_.end(),
                                           [](const auto& lane) { return lane != nullptr; }));
}

Lane* LaneSet::lane_for_ordered() {
  for (size_t i = 0; i < lanes_.size() && !lanes_[ordered_lane_]; ++i) {
    ordered_lane_ = (ordered_lane_ + 1) % lanes_.size();
  }
  return lanes_[ordered_lane_].get();
}

Lane* LaneSet::least_busy() const {
  Lane* found = nullptr;
  for (const auto& lane : lanes_) {
    if (lane && (!found || lane->queued_bytes() < found->queued_bytes())) found = lane.get();
  }
  return found;
}

void LaneSet::push_ordered(OutFrame frame) {
  number(frame);
  Lane* lane = lane_for_ordered();
  if (lane == nullptr) return orphaned_.push_back(std::move(frame));
  lane->push(std::move(frame));
}

void LaneSet::push_last(const OutFrame& frame) {
  for_each_lane([&](size_t, Lane& lane) {
    OutFrame copy = frame;
    copy.order = kSendLast;
    lane.push(std::move(copy));
  });
}

void LaneSet::push(OutFrame frame, uint8_t rail) {
  if (rail == kAnyRail) return push_ordered(std::move(frame));
  number(frame);
  Lane* lane = rail < lanes_.size() ? lanes_[rail].get() : nullptr;
  if (lane == nullptr) lane = least_busy();
  if (lane == nullptr) return orphaned_.push_back(std::move(frame));
  lane->push(std::move(frame));
}

uint8_t LaneSet::rail_for_small(const SendRequest& request) {
  const bool in_any_order = !is_point_to_point(request.tag) && request.bytes >= kLeastSpreadBytes;
  const bool may_choose = has_many_rails() && meters_ != nullptr && shape_.lanes_per_rail == 1;
  if (!in_any_order || !may_choose || request.rail != kAnyRail) return request.rail;
  if (num_alive() < lanes_.size()) return kAnyRail;
  return RailMeter::next_for_small({meters_, lanes_.size()}, request.bytes).value_or(kAnyRail);
}

// Frames are short while large messages leave room for small ones.
size_t LaneSet::within_budget(size_t bytes) const {
  for (size_t rail = 0; meters_ != nullptr && rail < shape_.num_rails; ++rail) {
    bytes = meters_[rail].budget().frame_bytes(bytes);
  }
  return bytes;
}

OutFrame LaneSet::next_part(const FrameHeader& header, SendRequest& request, size_t most) {
  OutFrame frame(header);
  const size_t bytes = std::min(most, request.bytes - request.queued);
  frame.header.offset = request.queued;
  frame.header.payload_bytes = static_cast<uint32_t>(bytes);
  frame.payload = request.data + request.queued;
  frame.completes = &request;
  frame.is_part = true;
  frame.order = request.order;
  ++request.parts_left;
  request.queued += bytes;
  return frame;
}

void LaneSet::push_large(const FrameHeader& header, SendRequest& request) {
  const auto goes_later = [&](const Large& m) { return m.request->order > request.order; };
  large_.insert(std::find_if(large_.begin(), large_.end(), goes_later), {header, &request});
  feed();
}

Lane* LaneSet::first_lane() const {
  return shape_.first_rail < lanes_.size() ? lanes_[shape_.first_rail].get() : nullptr;
}

// For the next part of the message.
Lane* LaneSet::next_with_room(const Large& message) {
  const SendOrder& order = message.request->order;
  Lane* only =
      is_striped(message.request->rail) ? first_lane() : lanes_[message.request->rail].get();
  if (only != nullptr) return only->has_room(order) ? only : nullptr;
  for (size_t i = 0; i < lanes_.size(); ++i) {
    const size_t index = (next_lane_ + i) % lanes_.size();
    if (!lanes_[index] || !lanes_[index]->has_room(order)) continue;
    if (would_be_last(index, part_bytes(message), message.left())) continue;
    next_lane_ = (index + 1) % lanes_.size();
    return lanes_[index].get();
  }
  return nullptr;
}

// Whether the other lanes would carry all that is left before this one has carried the next part,
// and one of them that part alone. So the lane that would be first takes it, now or as soon as it
// has room.
bool LaneSet::would_be_last(size_t index, size_t part, size_t left) const {
  if (!has_many_rails()) return false;
  const int64_t now = now_ns();
  const auto seconds = [part](const Lane::Prospect& prospect) {
    return (prospect.queued_bytes + static_cast<double>(part)) / prospect.bytes_per_second;
  };
  const Lane::Prospect own = lanes_[index]->prospect(now);
  if (own.bytes_per_second <= 0) return false;
  const double own_s = seconds(own);
  double queued = static_cast<double>(left), rate = 0;
  bool is_first = true;
  for (size_t other = 0; other < lanes_.size(); ++other) {
    if (other == index || !lanes_[other]) continue;
    const Lane::Prospect prospect = lanes_[other]->prospect(now);
    if (prospect.bytes_per_second <= 0) continue;
    queued += prospect.queued_bytes;
    rate += prospect.bytes_per_second;
    is_first = is_first && own_s <= seconds(prospect);
  }
  return !is_first && own_s > queued / rate;
}

// Parts shrink towards the end, so that all lanes finish together.
size_t LaneSet::part_bytes(const Large& message) const {
  if (!has_many_rails()) return within_budget(kMaxPayloadBytes);
  const bool has_one_lane = first_lane() != nullptr || !is_striped(message.request->rail);
  const size_t num_used = has_one_lane ? 1 : num_alive();
  return std::clamp(message.left() / (2 * num_used), kMinPartBytes, within_budget(kMaxPartBytes));
}

std::pair<size_t, Lane*> LaneSet::next_large() {
  if (num_parts_ % kPartsPerOldest == kPartsPerOldest - 1) {
    const auto is_older = [](const Large& a, const Large& b) {
      return a.request->age < b.request->age;
    };
    const auto oldest = std::min_element(large_.begin(), large_.end(), is_older);
    if (Lane* lane = next_with_room(*oldest)) return {oldest - large_.begin(), lane};
  }
  for (size_t i = 0; i < large_.size(); ++i) {
    if (Lane* lane = next_with_room(large_[i])) return {i, lane};
  }
  return {0, nullptr};
}

void LaneSet::limit_credit() {
  if (meters_ == nullptr || std::exchange(limits_credit_, true)) return;
  for_each_lane([this](size_t, Lane& lane) { lane.limit_credit(shape_.credit_bytes); });
}

bool LaneSet::feed_large() {
  bool moved = false;
  while (!large_.empty()) {
    const auto [index, lane] = next_large();
    if (lane == nullptr) break;
    const Large& message = large_[index];
    const size_t most = std::min(part_bytes(message), lane->credit(now_ns()));
    OutFrame frame = next_part(message.header, *message.request, most);
    ++num_parts_;
    if (message.left() == 0) large_.erase(large_.begin() + static_cast<ptrdiff_t>(index));
    number(frame);
    lane->push(std::move(frame));
    moved = true;
  }
  return moved;
}

bool LaneSet::idle() const {
  const auto is_idle = [](const auto& lane) { return !lane || lane->idle(); };
  return large_.empty() && orphaned_.empty() && std::all_of(lanes_.begin(), lanes_.end(), is_idle);
}

size_t LaneSet::num_unfinished() const {
  size_t count = large_.size() + orphaned_.size();
  for_each_lane([&](size_t, Lane& lane) { count += lane.num_unfinished(); });
  return count;
}

// A frame that has its number. Parts of large messages may go anywhere.
void LaneSet::place(OutFrame frame) {
  Lane* lane = frame.is_part ? least_busy() : lane_for_ordered();
  lane->push(std::move(frame));
}

size_t LaneSet::lose(size_t index) {
  std::deque<OutFrame> frames = lanes_[index]->take_back();
  lanes_[index].reset();
  const size_t num_frames = frames.size();
  ++counters_of(index).lanes_lost;
  counters_of(index).frames_repeated += num_frames;
  std::move(frames.begin(), frames.end(), std::back_inserter(orphaned_));
  if (any() != nullptr) place_orphaned();
  return num_frames;
}

void LaneSet::place_orphaned() {
  for (OutFrame& frame : std::exchange(orphaned_, {})) place(std::move(frame));
}

void LaneSet::drop_queued() {
  large_.clear();
  orphaned_.clear();
  for_each_lane([](size_t, Lane& lane) { lane.drop_queued(); });
}

}  // namespace dmlcomm::transport
