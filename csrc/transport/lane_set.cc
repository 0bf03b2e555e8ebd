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

LaneSet::Turn LaneSet::next_turn_of(size_t message) {
  const SendRequest& request = *large_[message].request;
  const size_t left = large_[message].left();
  Lane* const only = is_striped(request.rail) ? first_lane() : lanes_[request.rail].get();
  if (only != nullptr) {
    return {message, only->has_room(request.order) ? only : nullptr, part_bytes(left, 1)};
  }
  const int64_t now = has_many_rails() ? now_ns() : 0;
  for (size_t i = 0; i < lanes_.size(); ++i) {
    const size_t index = (next_lane_ + i) % lanes_.size();
    if (!lanes_[index] || !lanes_[index]->has_room(request.order)) continue;
    const size_t bytes = part_bytes(left, has_many_rails() ? share_of(index, now) : 1);
    if (would_be_last(index, bytes, left, now)) continue;
    next_lane_ = (index + 1) % lanes_.size();
    return {message, lanes_[index].get(), bytes};
  }
  return {};
}

// Where the kernel does not know the rate, as the lane had too little to send, its rail may have
// shown one. 0: not known.
double LaneSet::rate_of(size_t index, const Lane::Prospect& prospect) const {
  if (prospect.bytes_per_second > 0 || meters_ == nullptr) return prospect.bytes_per_second;
  return meters_[index % shape_.num_rails].bits_per_second() / 8;
}

// The lane's share of all rates. Where one is not known it is taken for that of the lane.
double LaneSet::share_of(size_t index, int64_t now) const {
  const double own = rate_of(index, lanes_[index]->prospect(now));
  if (own <= 0) return 1 / static_cast<double>(num_alive());
  double all = 0;
  for_each_lane([&](size_t other, Lane& lane) {
    const double rate = rate_of(other, lane.prospect(now));
    all += rate > 0 ? rate : own;
  });
  return own / all;
}

// Whether the other lanes would carry all that is left before this one has carried the next part,
// and one of them that part alone. So the lane that would be first takes it, now or as soon as it
// has room. A lane that was idle takes the first part in any case: its rate may have changed.
bool LaneSet::would_be_last(size_t index, size_t part, size_t left, int64_t now) const {
  if (!has_many_rails()) return false;
  const auto seconds = [part](double queued_bytes, double rate) {
    return (queued_bytes + static_cast<double>(part)) / rate;
  };
  const Lane::Prospect own = lanes_[index]->prospect(now);
  const double own_rate = rate_of(index, own);
  if (own_rate <= 0 || (own.is_idle && own.queued_bytes <= 0)) return false;
  const double own_s = seconds(own.queued_bytes, own_rate);
  double queued = static_cast<double>(left), all = 0;
  bool is_first = true;
  for_each_lane([&](size_t other, Lane& lane) {
    const Lane::Prospect prospect = lane.prospect(now);
    const double rate = rate_of(other, prospect);
    if (other == index || rate <= 0) return;
    queued += prospect.queued_bytes;
    all += rate;
    is_first = is_first && own_s <= seconds(prospect.queued_bytes, rate);
  });
  return !is_first && own_s > queued / all;
}

// Parts shrink towards the end, so that all lanes finish together. A lane with a small share of the
// rates has small parts, as a large one would take it longer than the others need for the message.
size_t LaneSet::part_bytes(size_t left, double share) const {
  if (!has_many_rails()) return within_budget(kMaxPayloadBytes);
  const auto bytes = static_cast<size_t>(share * static_cast<double>(left) / 2);
  return std::clamp(bytes, kMinPartBytes, within_budget(kMaxPartBytes));
}

LaneSet::Turn LaneSet::next_turn() {
  if (num_parts_ % kPartsPerOldest == kPartsPerOldest - 1) {
    const auto is_older = [](const Large& a, const Large& b) {
      return a.request->age < b.request->age;
    };
    const auto oldest = std::min_element(large_.begin(), large_.end(), is_older);
    const Turn turn = next_turn_of(static_cast<size_t>(oldest - large_.begin()));
    if (turn.lane != nullptr) return turn;
  }
  for (size_t message = 0; message < large_.size(); ++message) {
    const Turn turn = next_turn_of(message);
    if (turn.lane != nullptr) return turn;
  }
  return {};
}

void LaneSet::limit_credit() {
  if (meters_ == nullptr || std::exchange(limits_credit_, true)) return;
  for_each_lane([this](size_t, Lane& lane) { lane.limit_credit(shape_.credit_bytes); });
}

bool LaneSet::feed_large() {
  bool moved = false;
  while (!large_.empty()) {
    const Turn turn = next_turn();
    if (turn.lane == nullptr) break;
    const Large& message = large_[turn.message];
    const size_t most = std::min(turn.bytes, turn.lane->credit(now_ns()));
    OutFrame frame = next_part(message.header, *message.request, most);
    ++num_parts_;
    if (message.left() == 0) large_.erase(large_.begin() + static_cast<ptrdiff_t>(turn.message));
    number(frame);
    turn.lane->push(std::move(frame));
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
