// LaneSet: the lanes of one link. It chooses the lane of each frame. Every rail has a usual lane; a
// rail that stands in for the one that leads to the peer may have several. Once there are urgent
// messages, a rail has one more for each class of their tickets (base/ticket.h): what the kernel
// and switches hold of other lanes is not in front of it.
//
// A large message is cut into parts, and a lane takes the next part whenever it has room: a lane
// that is twice as fast carries twice as much. The next part is one of the message that goes first
// (SendOrder), and every sixteenth one of the oldest operation, so that none waits for ever: bytes
// of small messages count, too. Parts of a slow lane are small, and at the end of a message it
// takes none that the others would have carried before. Between hosts,
//  - frames whose order matters (control, small messages between two points) share one lane, and
//    move to another only when that dies;
//  - a message that names a rail takes its lane while that lives;
//  - every frame has a number and stays here until the peer has confirmed it. The unconfirmed
//    frames of a dying lane go over the others, or over the next one; the receiver drops numbers
//    that it has.
// From the first urgent message on,
//  - a message takes the lane of its class, or where that is not connected the usual one;
//  - no lane takes parts of large messages while a more urgent one of its rail is busy;
//  - while there are more urgent messages on the rail, of any link, a lane takes parts only as long
//    as the kernel has few bytes of it;
//  - messages of one tag between two points keep their order: one follows those that are not
//    confirmed on their lane.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "base/ticket.h"
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
    // Of urgent tickets. Class c has a lane on every rail, behind the usual ones and those of
    // earlier classes.
    size_t num_classes = 0;
    bool reconnects = false;  // the only usual lane, too, may be lost and come back

    size_t num_usual() const { return num_rails * lanes_per_rail; }
    // Frames have numbers, and are sent again if their lane is lost.
    bool keeps_frames() const { return num_usual() > 1 || num_classes > 0 || reconnects; }
  };

  // `counters` and `meters`: one per rail; `meters` may be null.
  LaneSet(const Shape& shape, RailCounters* counters, RailMeter* meters, LaneReader* reader);

  size_t num_lanes() const { return lanes_.size(); }
  // Whether lanes may be lost: frames have numbers, and are sent again over others, or when a lane
  // is connected anew.
  bool keeps_frames() const { return shape_.keeps_frames(); }
  // Whether it carries all messages but urgent ones.
  bool is_alone(size_t index) const { return num_usual() == 1 && is_usual(index); }
  // Those of classes are not.
  bool is_usual(size_t index) const { return index < num_usual(); }
  // The first usual lane of the rail. Null for a usual lane, and where that one is lost.
  Lane* usual_beside(size_t index) const {
    return is_usual(index) ? nullptr : lanes_[index % shape_.num_rails].get();
  }
  // Lanes of the classes that have become of use since the last call.
  std::vector<size_t> take_wanted() { return std::exchange(wanted_, {}); }

  void attach(size_t index, std::unique_ptr<Channel> channel);
  // Null if it is not connected.
  Lane* lane(size_t index) const { return lanes_[index].get(); }
  // A living usual lane, or null.
  Lane* any() const;
  // `visit(index, lane)` for every living lane; it may give up the one that it is shown.
  template <typename Visit>
  void for_each_lane(Visit visit) const {
    for (size_t index = 0; index < lanes_.size(); ++index) {
      if (lanes_[index]) visit(index, *lanes_[index]);
    }
  }

  // A message is about to be pushed.
  void expect(const SendOrder& order);
  // In the order of the calls.
  void push_ordered(OutFrame frame);
  // In any order, before others.
  void push_first(OutFrame frame);
  // On every living lane, behind everything else, and not repeated.
  void push_last(const OutFrame& frame);
  // Over `rail`, or another if that is dead, in any order; without a named rail (kAnyRail) in the
  // order of the calls.
  void push(OutFrame frame, uint8_t rail);
  // A large message in parts, over the rail that it names, or the one that leads to the peer, or
  // all lanes; `header` is that of its first part.
  void push_large(const FrameHeader& header, SendRequest& request);
  // The rail of a small message. One that may take any, in any order, has kAnyRail only if it is
  // very small, a rail is dead, or one alone leads to the peer.
  uint8_t rail_for_small(const SendRequest& request);
  // Whether a small message is to ask for a receipt, whose time tells the rail's rate: one in some.
  bool is_sampled(const SendRequest& request);
  // The next part of `request`, of at most `most` bytes.
  static OutFrame next_part(const FrameHeader& header, SendRequest& request, size_t most);

  // See Lane::limit_credit(). Without effect on lanes inside a host, which have no meters.
  void limit_credit();
  // See Channel::mark_class(). Without effect on lanes inside a host.
  void mark_class(uint8_t dscp);

  // Gives parts of large messages to lanes that have room.
  bool feed() { return !large_.empty() && feed_large(); }
  // All frames have been written.
  bool idle() const;
  // Frames that are not through: not written or, if they have numbers, not confirmed.
  size_t num_unfinished() const;
  // Bytes that were written, and that the peer's kernel has not confirmed.
  bool has_bytes_on_the_way() const;
  // Gives up a lane; the others take over its undelivered frames. Returns how many.
  size_t lose(size_t index);
  // Drops the queues; see Lane. `reason`: for peers of channels that may lose frames.
  void drop_queued(const Status& reason);
  // Channels touch no memory that they were given before.
  void let_go() const;

 private:
  struct Large {
    FrameHeader header;
    SendRequest* request;
    size_t ticket_class;

    size_t left() const { return request->bytes - request->queued; }
  };

  // The next part of large_[message], and the lane that takes it; or no lane.
  struct Turn {
    size_t message = 0;
    Lane* lane = nullptr;
    size_t bytes = 0;
    bool is_oldest = false;
  };

  RailCounters& counters_of(size_t index) { return counters_[index % shape_.num_rails]; }
  bool feed_large();
  void number(OutFrame& frame);
  size_t num_usual() const { return shape_.num_usual(); }
  size_t class_of_lane(size_t index) const {
    return is_usual(index) ? 0 : 1 + (index - num_usual()) / shape_.num_rails;
  }
  size_t index_of(size_t ticket_class, size_t rail) const {
    return num_usual() + (ticket_class - 1) * shape_.num_rails + rail;
  }
  Lane* lane_of_class(size_t ticket_class, size_t rail) const;
  size_t class_of(const SendOrder& order) const {
    return ticket_class(order.ticket, shape_.num_classes);
  }
  bool carries(size_t index, size_t ticket_class) const;
  // The usual lane of the rail has not been connected yet, and may be soon.
  bool is_awaited(size_t rail) const;
  bool is_held_up(size_t index) const;
  bool yields(size_t index) const;
  // A message of a collective that may take any of several rails.
  bool may_choose_rail(const SendRequest& request) const;
  Lane* lane_on(uint8_t rail, size_t ticket_class) const;
  Lane* lane_after_its_tag(const OutFrame& frame);
  size_t num_alive(size_t ticket_class = 0) const;
  Lane* lane_for_ordered();
  Lane* least_busy() const;
  Turn next_turn_of(size_t message, bool is_oldest);
  Turn next_turn();
  bool compares_rails(size_t ticket_class, int64_t now) const;
  double rate_of(size_t index, bool of_rail, const Lane::Prospect& prospect) const;
  double share_of(size_t index, size_t ticket_class, int64_t now) const;
  bool would_be_last(size_t index, size_t part, const Large& message, int64_t now) const;
  void place(OutFrame frame);
  void place_orphaned();
  size_t within_budget(size_t bytes) const;
  size_t part_bytes(size_t left, double share) const;
  size_t most_part_bytes() const;

  const Shape shape_;
  RailCounters* const counters_;
  RailMeter* const meters_;
  LaneReader* const reader_;
  std::vector<std::unique_ptr<Lane>> lanes_;
  size_t ordered_lane_ = 0;
  size_t next_lane_ = 0;  // takes the next part
  uint64_t next_number_ = 1;
  std::deque<Large> large_;  // in the order in which they go
  // Parts of large messages that were given to lanes, and bytes of small messages, since the oldest
  // large one had its turn.
  size_t parts_since_oldest_ = 0;
  size_t bytes_since_oldest_ = 0;
  bool limits_credit_;
  std::optional<uint8_t> class_dscp_;  // see mark_class()
  std::vector<int64_t> attached_ns_;   // of each lane, for the first time; 0: never
  size_t num_spread_ = 0;              // small messages that may take any rail
  bool uses_classes_ = false;          // there has been an urgent message
  std::vector<bool> is_wanted_;        // by class
  std::vector<size_t> wanted_;
  std::deque<OutFrame> orphaned_;  // while no lane lives
};

}  // namespace dmlcomm::transport
