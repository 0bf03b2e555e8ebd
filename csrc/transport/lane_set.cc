#include "transport/lane_set.h"

#include <algorithm>
#include <utility>

namespace dmlcomm::transport {
namespace {

// A part of a striped message: large enough to be worth a system call, and small enough that the
// slowest lane is not the last to finish.
constexpr size_t kMaxPartBytes = 128 * 1024;
constexpr size_t kMinPartBytes = 16 * 1024;

}  // namespace

LaneSet::LaneSet(uint64_t job_id, size_t num_rails, RailCounters* counters, LaneReader* reader)
    : job_id_(job_id), counters_(counters), reader_(reader), lanes_(num_rails) {}

void LaneSet::attach(size_t rail, std::unique_ptr<Channel> channel) {
  lanes_[rail] = std::make_unique<Lane>(std::move(channel), job_id_, has_many_rails(),
                                        &counters_[rail], reader_);
  place_homeless();
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

Lane* LaneSet::ordered_lane() {
  for (size_t i = 0; i < lanes_.size() && !lanes_[ordered_rail_]; ++i) {
    ordered_rail_ = (ordered_rail_ + 1) % lanes_.size();
  }
  return lanes_[ordered_rail_].get();
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
  Lane* lane = ordered_lane();
  if (lane == nullptr) return homeless_.push_back(std::move(frame));
  lane->push(std::move(frame));
}

void LaneSet::push_last(const OutFrame& frame) {
  for_each_lane([&](size_t, Lane& lane) {
    OutFrame copy = frame;
    copy.order = UINT64_MAX;
    lane.push(std::move(copy));
  });
}

void LaneSet::push(OutFrame frame, uint8_t rail) {
  if (rail == kAnyRail) return push_ordered(std::move(frame));
  number(frame);
  Lane* lane = rail < lanes_.size() ? lanes_[rail].get() : nullptr;
  if (lane == nullptr) lane = least_busy();
  if (lane == nullptr) return homeless_.push_back(std::move(frame));
  lane->push(std::move(frame));
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

void LaneSet::stripe(const FrameHeader& header, SendRequest& request) {
  const auto goes_later = [&](const Striped& s) { return s.request->order > request.order; };
  striped_.insert(std::find_if(striped_.begin(), striped_.end(), goes_later), {header, &request});
  feed();
}

Lane* LaneSet::next_with_room() {
  for (size_t i = 0; i < lanes_.size(); ++i) {
    const size_t rail = (next_rail_ + i) % lanes_.size();
    if (!lanes_[rail] || !lanes_[rail]->has_room()) continue;
    next_rail_ = (rail + 1) % lanes_.size();
    return lanes_[rail].get();
  }
  return nullptr;
}

bool LaneSet::feed() {
  bool moved = false;
  while (!striped_.empty()) {
    Lane* lane = next_with_room();
    if (lane == nullptr) break;
    const auto [header, request] = striped_.front();
    // Parts shrink towards the end, so that all lanes finish together.
    const size_t share = (request->bytes - request->queued) / (2 * num_alive());
    OutFrame frame = next_part(header, *request, std::clamp(share, kMinPartBytes, kMaxPartBytes));
    if (request->queued == request->bytes) striped_.pop_front();
    number(frame);
    lane->push(std::move(frame));
    moved = true;
  }
  return moved;
}

bool LaneSet::idle() const {
  const auto is_idle = [](const auto& lane) { return !lane || lane->idle(); };
  return striped_.empty() && homeless_.empty() &&
         std::all_of(lanes_.begin(), lanes_.end(), is_idle);
}

size_t LaneSet::num_unfinished() const {
  size_t count = striped_.size() + homeless_.size();
  for_each_lane([&](size_t, Lane& lane) { count += lane.num_unfinished(); });
  return count;
}

// A frame that has its number. Parts of large messages may go anywhere.
void LaneSet::place(OutFrame frame) {
  Lane* lane = frame.is_part ? least_busy() : ordered_lane();
  lane->push(std::move(frame));
}

size_t LaneSet::lose(size_t rail) {
  std::deque<OutFrame> frames = lanes_[rail]->take_back();
  lanes_[rail].reset();
  const size_t num_frames = frames.size();
  ++counters_[rail].lanes_lost;
  counters_[rail].frames_repeated += num_frames;
  std::move(frames.begin(), frames.end(), std::back_inserter(homeless_));
  if (any() != nullptr) place_homeless();
  return num_frames;
}

void LaneSet::place_homeless() {
  for (OutFrame& frame : std::exchange(homeless_, {})) place(std::move(frame));
}

void LaneSet::drop_queued() {
  striped_.clear();
  homeless_.clear();
  for_each_lane([](size_t, Lane& lane) { lane.drop_queued(); });
}

}  // namespace dmlcomm::transport
