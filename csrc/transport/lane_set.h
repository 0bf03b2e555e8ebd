// LaneSet: the lanes of one link. It chooses the lane of each frame. Every rail has a lane; a rail
// that stands in for the one that leads to the peer may have several.
//
// A large message is cut into parts, and a lane takes the next part whenever it has room: a lane
// that is twice as fast carries twice as much. The next part is one of the message that goes first
// (SendOrder), and every sixteenth one of the oldest operation, so that none waits for ever. Parts
// of a slow lane are small, and at the end of a message it takes none that the others would have
// carried before. With several rails,
//  - frames whose order matters (control, small messages between two points) share one lane, and
//    move to another only when that dies;
//  - a message that names a rail takes its lane while that lives;
//  - every frame has a number and stays here until the peer has confirmed it. The unconfirmed
//    frames of a dying lane go over the others; the receiver drops numbers that it has.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include "transport/lane.h"

namespace dmlcomm::transport {

class LaneSet {
 public:
  struct Shape {
    uint64_t job_id;
    size_t num_rails;
    size_t lanes_per_rail;  // lane i is on rail i modulo num_rails
    uint8_t first_rail;     // while it lives, messages for any rail are not striped over others
    size_t credit_bytes;    // of each lane; 0: by its rate, once it is limited
  };

  // `counters` and `meters`: one per rail; `meters` may be null.
  LaneSet(const Shape& shape, RailCounters* counters, RailMeter* meters, LaneReader* reader);

  size_t num_lanes() const { return lanes_.size(); }
  bool has_many_rails() const { return lanes_.size() > 1; }

  void attach(size_t index, std::unique_ptr<Channel> channel);
  // Null if it is not connected.
  Lane* lane(size_t index) const { return lanes_[index].get(); }
  // Whether a message for `rail` goes over all lanes: it may take any, or its own is dead.
  bool is_striped(uint8_t rail) const { return rail >= lanes_.size() || !lanes_[rail]; }
  // A living lane, or null.
  Lane* any() const;
  // `visit(index, lane)` for every living lane; it may give up the one that it is shown.
  template <typename Visit>
  void for_each_lane(Visit visit) const {
    for (size_t index = 0; index < lanes_.size(); ++index) {
      if (lanes_[index]) visit(index, *lanes_[index]);
    }
  }

  // In the order of the calls.
  void push_ordered(OutFrame frame);
  // On every living lane, behind everything else, and not repeated.
  void push_last(const OutFrame& frame);
  // Over `rail`, or another if that is dead, in any order; without a named rail (kAnyRail) in the
  // order of the calls.
  void push(OutFrame frame, uint8_t rail);
  // A large message in parts, over the rail that it names, or the one that leads to the peer, or
  // all lanes; `header` is that of its first part.
  void push_large(const FrameHeader& header, SendRequest& request);
  // The rail of a small message. One that may take any, in any order, has kAnyRail only if it is
  // very small, the rates are not known, a rail is dead, or one alone leads to the peer.
  uint8_t rail_for_small(const SendRequest& request);
  // The next part of `request`, of at most `most` bytes.
  static OutFrame next_part(const FrameHeader& header, SendRequest& request, size_t most);

  // See Lane::limit_credit(). Without effect on lanes inside a host, which have no meters.
  void limit_credit();

  // Gives parts of large messages to lanes that have room.
  bool feed() { return !large_.empty() && feed_large(); }
  // All frames have been written.
  bool idle() const;
  // Frames that are not through: not written or, with several rails, not confirmed.
  size_t num_unfinished() const;
  // Gives up a lane; the others take over its undelivered frames. Returns how many.
  size_t lose(size_t index);
  // Drops the queues; see Lane.
  void drop_queued();

 private:
  struct Large {
    FrameHeader header;
    SendRequest* request;

    size_t left() const { return request->bytes - request->queued; }
  };
  // The next part of large_[message], and the lane that takes it; or no lane.
  struct Turn {
    size_t message = 0;
    Lane* lane = nullptr;
    size_t bytes = 0;
  };

  RailCounters& counters_of(size_t index) { return counters_[index % shape_.num_rails]; }
  bool feed_large();
  void number(OutFrame& frame);
  size_t num_alive() const;
  Lane* lane_for_ordered();
  Lane* least_busy() const;
  Lane* first_lane() const;
  Turn next_turn_of(size_t message);
  Turn next_turn();
  double rate_of(size_t index, const Lane::Prospect& prospect) const;
  double share_of(size_t index, int64_t now) const;
  bool would_be_last(size_t index, size_t part, size_t left, int64_t now) const;
  void place(OutFrame frame);
  void place_orphaned();
  size_t within_budget(size_t bytes) const;
  size_t part_bytes(size_t left, double share) const;

  const Shape shape_;
  RailCounters* const counters_;
  RailMeter* const meters_;
  LaneReader* const reader_;
  std::vector<std::unique_ptr<Lane>> lanes_;
  size_t ordered_lane_ = 0;
  size_t next_lane_ = 0;  // takes the next part
  uint64_t next_number_ = 1;
  std::deque<Large> large_;  // in the order in which they go
  size_t num_parts_ = 0;     // that have been given to lanes
  bool limits_credit_;
  std::deque<OutFrame> orphaned_;  // while no lane lives
};

}  // namespace dmlcomm::transport
