#include "transport/lane_set.h"

#include <algorithm>
#include <span>
#include <utility>

#include "base/clock.h"

namespace dmlcomm::transport {
namespace {

constexpr size_t kMinPartBytes = 16 * 1024;
// A small message of a collective takes any rail from this size on. Smaller ones leave together on
// one, in one system call.
constexpr size_t kLeastSpreadBytes = 4 * 1024;
// One of so many of these is timed: a prime, so that they are not all on one rail.
constexpr size_t kSpreadPerSample = 7;
// A lane that gives way has as much as the rail carries in this time, and looks again every
// millisecond (Mesh::sleep).
constexpr double kYieldingS = 2e-3;
constexpr double kLeastYieldingBytes = 32 * 1024;
// So long after a connection others to the same peer may come for the first time.
constexpr int64_t kFirstAttemptNs = 200 * kNsPerMs;

}  // namespace

LaneSet::LaneSet(const Shape& shape, RailCounters* counters, RailMeter* meters, LaneReader* reader)
    : shape_(shape),
      counters_(counters),
      meters_(meters),
      reader_(reader),
      lanes_(shape.num_usual() + shape.num_rails * shape.num_classes),
      limits_credit_(shape.credit_bytes > 0),
      attached_ns_(lanes_.size()),
      is_wanted_(1 + shape.num_classes) {}

void LaneSet::attach(size_t index, std::unique_ptr<Channel> channel) {
  RailMeter* const meter = meters_ == nullptr ? nullptr : &meters_[index % shape_.num_rails];
  lanes_[index] = std::make_unique<Lane>(std::move(channel), shape_.job_id, keeps_frames(),
                                         &counters_of(index), meter, reader_, class_of_lane(index));
  if (limits_credit_) lanes_[index]->limit_credit(shape_.credit_bytes);
  if (class_dscp_) lanes_[index]->channel().mark_class(*class_dscp_);
  if (attached_ns_.at(index) == 0) attached_ns_[index] = now_ns();
  if (any() != nullptr) place_orphaned();
}

bool LaneSet::is_awaited(size_t rail) const {
  if (attached_ns_[rail] > 0) return false;
  const auto last = std::max_element(attached_ns_.begin(), attached_ns_.end());
  return now_ns() - *last < kFirstAttemptNs;
}

Lane* LaneSet::any() const {
  for (size_t index = 0; index < num_usual(); ++index) {
    if (lanes_[index]) return lanes_[index].get();
  }
  return nullptr;
}

void LaneSet::number(OutFrame& frame) {
  if (keeps_frames()) frame.header.number = next_number_++;
}

// --- classes of urgent tickets ---

// Null if it is not connected, or for class 0.
Lane* LaneSet::lane_of_class(size_t ticket_class, size_t rail) const {
  if (ticket_class == 0) return nullptr;
  return lanes_[index_of(ticket_class, rail)].get();
}

// Where one rail leads to the peer, the others stand in for it, and need no more lanes.
void LaneSet::expect(const SendOrder& order) {
  const size_t ticket_class = class_of(order);
  if (ticket_class == 0 || is_wanted_[ticket_class]) return;
  uses_classes_ = true;
  is_wanted_[ticket_class] = true;
  for (size_t rail = 0; rail < shape_.num_rails; ++rail) {
    if (shape_.first_rail < shape_.num_rails && rail != shape_.first_rail) continue;
    wanted_.push_back(index_of(ticket_class, rail));
  }
}

// Whether parts of messages of this class may go over the lane, which lives.
bool LaneSet::carries(size_t index, size_t ticket_class) const {
  const size_t own = class_of_lane(index);
  if (own > 0 || ticket_class == 0) return own == ticket_class;
  return lane_of_class(ticket_class, index % shape_.num_rails) == nullptr;
}

bool LaneSet::is_held_up(size_t index) const {
  const size_t own = class_of_lane(index);
  const size_t num_before = own == 0 ? shape_.num_classes : own - 1;
  for (size_t before = 1; before <= num_before; ++before) {
    const Lane* const lane = lane_of_class(before, index % shape_.num_rails);
    if (lane != nullptr && !lane->idle() && lane->is_busy(now_ns())) return true;
  }
  return yields(index);
}

// Urgent messages of all links share the rail. While there are some, kernels get less of others,
// but enough that the rail has something to send.
bool LaneSet::yields(size_t index) const {
  if (meters_ == nullptr) return false;
  RailMeter& meter = meters_[index % shape_.num_rails];
  if (!meter.urgent().has_any()) return false;
  const int64_t now = now_ns();
  if (!meter.urgent().is_before(class_of_lane(index), now)) return false;
  const Lane::Prospect prospect = lanes_[index]->prospect(now);
  const double rate = std::max(meter.least_bits_per_second() / 8, prospect.bytes_per_second);
  if (rate <= 0 || prospect.queued_bytes <= std::max(kLeastYieldingBytes, kYieldingS * rate)) {
    return false;
  }
  meter.note_yielding();
  return true;
}

// Null if `rail` is kAnyRail, or has no living lane for this class.
Lane* LaneSet::lane_on(uint8_t rail, size_t ticket_class) const {
  if (rail >= shape_.num_rails) return nullptr;
  Lane* const lane = lane_of_class(ticket_class, rail);
  return lane != nullptr ? lane : lanes_[rail].get();
}

// The lane of the messages with its tag that the peer may not have read. Null: any will do.
Lane* LaneSet::lane_after_its_tag(const OutFrame& frame) {
  const bool has_order = is_point_to_point(frame.header.tag) && frame.begins_message();
  if (!has_order || !uses_classes_) return nullptr;
  const auto has_tag = [&](const OutFrame& other) {
    return other.header.tag == frame.header.tag && other.begins_message();
  };
  for (const auto& lane : lanes_) {
    if (lane && lane->holds(has_tag)) return lane.get();
  }
  return nullptr;
}

// --- lanes for frames ---

size_t LaneSet::num_alive(size_t ticket_class) const {
  size_t count = 0;
  for_each_lane([&](size_t index, Lane&) { count += carries(index, ticket_class) ? 1 : 0; });
  return count;
}

Lane* LaneSet::lane_for_ordered() {
  for (size_t i = 0; i < num_usual() && !lanes_[ordered_lane_]; ++i) {
    ordered_lane_ = (ordered_lane_ + 1) % num_usual();
  }
  return lanes_[ordered_lane_].get();
}

Lane* LaneSet::least_busy() const {
  Lane* found = nullptr;
  for (size_t index = 0; index < num_usual(); ++index) {
    Lane* const lane = lanes_[index].get();
    if (lane && (!found || lane->queued_bytes() < found->queued_bytes())) found = lane;
  }
  return found;
}

void LaneSet::push_ordered(OutFrame frame) {
  const size_t ticket_class = frame.header.ticket == 0 ? 0 : class_of(frame.order);
  number(frame);
  Lane* const usual = lane_for_ordered();
  Lane* lane = lane_after_its_tag(frame);
  if (lane == nullptr) lane = lane_of_class(ticket_class, ordered_lane_ % shape_.num_rails);
  if (lane == nullptr) lane = usual;
  // Others wait, and keep their place.
  if (lane == nullptr || !orphaned_.empty()) return orphaned_.push_back(std::move(frame));
  lane->push(std::move(frame));
}

void LaneSet::push_first(OutFrame frame) {
  for (size_t index = num_usual(); index < lanes_.size(); ++index) {
    if (!lanes_[index]) continue;
    number(frame);
    return lanes_[index]->push(std::move(frame));
  }
  push_ordered(std::move(frame));
}

void LaneSet::push_last(const OutFrame& frame) {
  for_each_lane([&](size_t, Lane& lane) {
    OutFrame copy = frame;
    copy.order = kSendLast;
    lane.push(std::move(copy));
  });
}

void LaneSet::push(OutFrame frame, uint8_t rail) {
  if (!large_.empty()) bytes_since_oldest_ += frame.header.payload_bytes;
  if (rail == kAnyRail) return push_ordered(std::move(frame));
  const size_t ticket_class = class_of(frame.order);
  number(frame);
  Lane* lane = lane_on(rail, ticket_class);
  if (lane == nullptr) lane = least_busy();
  if (lane == nullptr) return orphaned_.push_back(std::move(frame));
  lane->push(std::move(frame));
}

bool LaneSet::may_choose_rail(const SendRequest& request) const {
  const bool has_rails = num_usual() > 1 && meters_ != nullptr && shape_.lanes_per_rail == 1;
  return has_rails && !is_point_to_point(request.tag) && request.rail == kAnyRail;
}

bool LaneSet::is_sampled(const SendRequest& request) {
  const bool may_spread = may_choose_rail(request) && request.bytes >= kLeastSpreadBytes;
  return may_spread && num_spread_++ % kSpreadPerSample == 0;
}

uint8_t LaneSet::rail_for_small(const SendRequest& request) {
  if (!may_choose_rail(request)) return request.rail;
  if (num_alive() < num_usual()) return kAnyRail;
  const std::span<RailMeter> rails(meters_, num_usual());
  if (request.bytes < kLeastSpreadBytes) {
    const size_t nearest = RailMeter::nearest(rails, ordered_lane_, request.bytes);
    return nearest == ordered_lane_ ? kAnyRail : static_cast<uint8_t>(nearest);
  }
  // Those of large operations have their receipts at once, so what is under way is known.
  const bool is_told = request.tells_rate && request.bytes >= RailMeter::kLeastFrameBytes;
  return is_told ? RailMeter::first_through(rails, request.bytes)
                 : RailMeter::next_for_small(rails, request.bytes, now_ns());
}

// Frames are short while large messages leave room for small ones, or for other jobs.
size_t LaneSet::within_budget(size_t bytes) const {
  for (size_t rail = 0; meters_ != nullptr && rail < shape_.num_rails; ++rail) {
    bytes = meters_[rail].frame_bytes(bytes);
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
  if (request.queued == 0) frame.waits_since_ns = request.waits_since_ns;
  frame.order = request.order;
  ++request.parts_left;
  request.queued += bytes;
  return frame;
}

void LaneSet::push_large(const FrameHeader& header, SendRequest& request) {
  const auto goes_later = [&](const Large& m) { return m.request->order > request.order; };
  const size_t ticket_class = class_of(request.order);
  large_.insert(std::find_if(large_.begin(), large_.end(), goes_later),
                {header, &request, ticket_class});
  feed();
}

// The oldest message, when it has its turn, waits neither for lanes that are more urgent nor for
// small messages.
LaneSet::Turn LaneSet::next_turn_of(size_t message, bool is_oldest) {
  const Large& large = large_[message];
  const SendRequest& request = *large.request;
  const size_t left = large.left();
  const bool is_shared = num_usual() > 1;
  const int64_t now = is_shared ? now_ns() : 0;
  const auto has_room = [&](size_t index) {
    Lane& lane = *lanes_[index];
    if (is_oldest) return lane.has_room_behind(request.order, now_ns());
    return lane.has_room(request.order) && !is_held_up(index);
  };
  const auto goes_over = [&](size_t index, std::optional<size_t> only) {
    if (!lanes_[index] || !carries(index, large.ticket_class)) return false;
    if (!only || index == *only) return true;
    return index >= num_usual() && index % shape_.num_rails == *only;
  };
  if (request.rail < shape_.num_rails && is_awaited(request.rail)) return {};
  // The rail that it names, or the one that leads to the peer, while its usual lane lives.
  std::optional<size_t> only;
  for (const uint8_t rail : {request.rail, shape_.first_rail}) {
    if (!only && rail < shape_.num_rails && lanes_[rail]) only = rail;
  }
  for (size_t i = 0; i < lanes_.size(); ++i) {
    const size_t index = (next_lane_ + i) % lanes_.size();
    if (!goes_over(index, only) || !has_room(index)) continue;
    if (only) return {message, lanes_[index].get(), part_bytes(left, 1), is_oldest};
    const double share = is_shared ? share_of(index, large.ticket_class, now) : 1;
    const size_t bytes = part_bytes(left, share);
    if (would_be_last(index, bytes, large, now)) continue;
    next_lane_ = (index + 1) % lanes_.size();
    return {message, lanes_[index].get(), bytes, is_oldest};
  }
  return {};
}

// Where the kernel does not know the rate of a connection, as it had too little to send, its rail
// may have shown one. But connections that share a rail have parts of its rate. So lanes of one
// class are compared either by what all their connections have, or by what all their rails have.
bool LaneSet::compares_rails(size_t ticket_class, int64_t now) const {
  if (meters_ == nullptr) return false;
  bool knows_connections = true, knows_rails = true;
  for_each_lane([&](size_t index, Lane& lane) {
    if (!carries(index, ticket_class)) return;
    knows_connections = knows_connections && lane.prospect(now).bytes_per_second > 0;
    knows_rails = knows_rails && meters_[index % shape_.num_rails].bits_per_second() > 0;
  });
  return !knows_connections && knows_rails;
}

// 0: not known.
double LaneSet::rate_of(size_t index, bool of_rail, const Lane::Prospect& prospect) const {
  if (!of_rail) return prospect.bytes_per_second;
  return meters_[index % shape_.num_rails].bits_per_second() / 8;
}

// The lane's share of all rates. Where one is not known it is taken for that of the lane.
double LaneSet::share_of(size_t index, size_t ticket_class, int64_t now) const {
  const bool of_rails = compares_rails(ticket_class, now);
  const double own = rate_of(index, of_rails, lanes_[index]->prospect(now));
  if (own <= 0) return 1 / static_cast<double>(num_alive(ticket_class));
  double all = 0;
  for_each_lane([&](size_t other, Lane& lane) {
    if (!carries(other, ticket_class)) return;
    const double rate = rate_of(other, of_rails, lane.prospect(now));
    all += rate > 0 ? rate : own;
  });
  return own / all;
}

// Whether the other lanes would carry all that is left before this one has carried the next part,
// and one of them that part alone. So the lane that would be first takes it, now or as soon as it
// has room. A lane that was idle takes the first part in any case: its rate may have changed.
bool LaneSet::would_be_last(size_t index, size_t part, const Large& message, int64_t now) const {
  if (num_usual() == 1) return false;
  const auto seconds = [part](double queued_bytes, double rate) {
    return (queued_bytes + static_cast<double>(part)) / rate;
  };
  const Lane::Prospect own = lanes_[index]->prospect(now);
  const bool of_rails = compares_rails(message.ticket_class, now);
  const double own_rate = rate_of(index, of_rails, own);
  if (own_rate <= 0 || (own.is_idle && own.queued_bytes <= 0)) return false;
  const double own_s = seconds(own.queued_bytes, own_rate);
  double queued = static_cast<double>(message.left()), all = 0;
  bool is_first = true;
  for_each_lane([&](size_t other, Lane& lane) {
    const Lane::Prospect prospect = lane.prospect(now);
    const double rate = rate_of(other, of_rails, prospect);
    if (other == index || rate <= 0 || !carries(other, message.ticket_class)) return;
    queued += prospect.queued_bytes;
    all += rate;
    is_first = is_first && own_s <= seconds(prospect.queued_bytes, rate);
  });
  return !is_first && own_s > queued / all;
}

// Parts shrink towards the end, so that all lanes finish together. A lane with a small share of the
// rates has small parts, as a large one would take it longer than the others need for the message.
size_t LaneSet::part_bytes(size_t left, double share) const {
  if (num_usual() == 1) return most_part_bytes();
  const auto bytes = static_cast<size_t>(share * static_cast<double>(left) / 2);
  return std::clamp(bytes, kMinPartBytes, most_part_bytes());
}

size_t LaneSet::most_part_bytes() const {
  return within_budget(num_usual() == 1 ? kMaxPayloadBytes : kMaxPartBytes);
}

LaneSet::Turn LaneSet::next_turn() {
  if (parts_since_oldest_ + bytes_since_oldest_ / most_part_bytes() >= kMostPartsBefore) {
    const auto is_older = [](const Large& a, const Large& b) {
      return a.request->age < b.request->age;
    };
    const auto oldest = std::min_element(large_.begin(), large_.end(), is_older);
    const Turn turn = next_turn_of(static_cast<size_t>(oldest - large_.begin()), true);
    if (turn.lane != nullptr) {
      parts_since_oldest_ = bytes_since_oldest_ = 0;
      return turn;
    }
  }
  for (size_t message = 0; message < large_.size(); ++message) {
    const Turn turn = next_turn_of(message, false);
    if (turn.lane == nullptr) continue;
    ++parts_since_oldest_;
    return turn;
  }
  return {};
}

void LaneSet::limit_credit() {
  if (meters_ == nullptr || std::exchange(limits_credit_, true)) return;
  for_each_lane([this](size_t, Lane& lane) { lane.limit_credit(shape_.credit_bytes); });
}

void LaneSet::mark_class(uint8_t dscp) {
  if (meters_ == nullptr) return;
  class_dscp_ = dscp;
  for_each_lane([dscp](size_t, Lane& lane) { lane.channel().mark_class(dscp); });
}

bool LaneSet::feed_large() {
  bool moved = false;
  while (!large_.empty()) {
    const Turn turn = next_turn();
    if (turn.lane == nullptr) break;
    const Large& message = large_[turn.message];
    const int64_t now = limits_credit_ ? now_ns() : 0;
    const size_t most = std::min(turn.bytes, turn.lane->credit(now));
    OutFrame frame = next_part(message.header, *message.request, most);
    frame.has_turn = turn.is_oldest;
    number(frame);
    if (message.left() == 0) large_.erase(large_.begin() + static_cast<ptrdiff_t>(turn.message));
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

bool LaneSet::has_bytes_on_the_way() const {
  return std::any_of(lanes_.begin(), lanes_.end(), [](const auto& lane) {
    return lane && lane->channel().flow().some_on_the_way;
  });
}

// A frame that has its number. Parts of large messages may go anywhere.
void LaneSet::place(OutFrame frame) {
  Lane* lane = frame.is_part ? least_busy() : lane_after_its_tag(frame);
  if (lane == nullptr) lane = lane_for_ordered();
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

void LaneSet::let_go() const {
  for_each_lane([](size_t, Lane& lane) { lane.channel().let_go(); });
}

void LaneSet::drop_queued(const Status& reason) {
  large_.clear();
  orphaned_.clear();
  for_each_lane([&](size_t, Lane& lane) {
    lane.channel().tell(reason);
    lane.drop_queued();
  });
}

}  // namespace dmlcomm::transport
