// Lane: frames over one channel. It writes queued frames, and reads frames into places that its
// owner names. Link knows which message a frame belongs to.
//
// Small frames cost system calls rather than bytes: frames that are queued together leave in one
// call, and a read for one frame also takes the bytes behind it.
//
// If the link has other lanes to fall back on, this one keeps frames until the peer has confirmed
// them: each header tells the other side how many numbered frames have come over this lane.
// take_back() returns the unconfirmed ones.
//
// All calls require the progress lock. Errors are returned, and the lane is unusable after one.
#pragma once

#include <algorithm>
#include <array>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "transport/channel.h"
#include "transport/frame.h"
#include "transport/rail_counters.h"
#include "transport/rail_meter.h"
#include "transport/request.h"
#include "transport/stall_watch.h"

namespace dmlcomm::transport {

// Memory for the next bytes of the payload that is being read. Empty: not now.
struct Sink {
  std::byte* data = nullptr;
  size_t bytes = 0;
  bool stays = false;  // it is where it is until the payload has come, or Channel::let_go()
};

// The reader's notes about the frame that a lane is reading.
struct Intake {
  RecvRequest* request = nullptr;  // the payload's; null: it goes to `buffer`
  std::vector<std::byte> buffer;
  bool is_duplicate = false;  // the frame came over another lane already
  bool said_goodbye = false;  // the peer's last word on this lane
};

// The reader's questions, answered by Link.
class LaneReader {
 public:
  virtual ~LaneReader() = default;

  // A header is complete; its payload comes next.
  virtual Status begin_frame(Intake& intake, const FrameHeader& header) = 0;
  // Room for the payload from `done` on; no memory holds the lane back until resume.
  virtual Sink room_for_payload(Intake& intake, const FrameHeader& header, size_t done) = 0;
  // More of the payload is in place; `done` in all.
  virtual void payload_arrived(Intake& intake, const FrameHeader& header, size_t done) = 0;
  // The frame is complete.
  virtual Status end_frame(Intake& intake, const FrameHeader& header) = 0;
  // All bytes of the request have been given to the channel, and confirmed if frames are kept.
  virtual void request_written(SendRequest& request) = 0;
};

// A frame on its way out.
struct OutFrame {
  explicit OutFrame(const FrameHeader& h) : header(h) {}

  // Whether it begins or announces a message.
  bool begins_message() const {
    return header.kind == FrameKind::offer || header.kind == FrameKind::request ||
           (header.kind == FrameKind::data && header.id == 0);
  }

  FrameHeader header;
  HeaderBytes bytes{};
  bool has_trailer = false;
  size_t num_checked = 0;              // bytes of the payload that are in the checksum
  uint32_t checksum = 0;               // the trailer, once all are
  const std::byte* payload = nullptr;  // borrowed; unused if `owned` is not empty
  SendRequest* completes = nullptr;    // reported when the frame is through
  std::string owned;                   // the payload, if it is not borrowed
  bool is_part = false;                // of a large message: order does not matter
  bool has_budget = false;             // a large one; see RailMeter::take_large()
  bool tells_rate = false;             // see SendRequest
  SendOrder order;
  uint32_t num_passed = 0;     // frames that have gone before it since it waits
  size_t bytes_passed = 0;     // their payloads
  bool has_turn = false;       // of the oldest operation: few bytes go before it
  size_t written = 0;          // header included
  int64_t waits_since_ns = 0;  // see SendRequest; 0: another frame
  int64_t sampled_ns = 0;      // when it began to leave, if its receipt tells of the rail's rate
};

// The oldest large message waits while others have so many parts, or as many bytes, at most.
constexpr size_t kMostPartsBefore = 15;
// A part of a striped message: large enough to be worth a system call, and small enough that the
// slowest lane is not the last to finish.
constexpr size_t kMaxPartBytes = 128 * 1024;

class Lane {
 public:
  // `keeps`: numbered frames are kept until the peer has confirmed them. `meter`: that of the rail,
  // or null; it outlives the lane. `ticket_class`: of its messages.
  Lane(std::unique_ptr<Channel> channel, uint64_t job_id, bool keeps, RailCounters* counters,
       RailMeter* meter, LaneReader* reader, size_t ticket_class);
  ~Lane() { end_all_metered(); }

  Channel& channel() { return *channel_; }
  Intake& intake() { return intake_; }
  // The request of the frame that is being read needs it no more: the rest goes nowhere.
  void let_go_of_request();

  // Queues a frame, and writes as many bytes as fit; a small message waits for flush_deferred() or
  // for a frame that does not wait. A payload that the frame does not own is borrowed until
  // `completes` is reported.
  void push(OutFrame frame);
  void flush_deferred();

  // Writes queued frames. Sets `moved` if anything was written.
  Status flush(bool* moved);
  // Reads frames until the channel is empty, the reader has no room, or `max_bytes` have come.
  Status read(size_t max_bytes, bool* moved);

  // A cheap test whether read() may find bytes.
  bool maybe_readable() const {
    return ahead_bytes_ > 0 || held_back_ || channel_->maybe_readable();
  }

  bool idle() const { return out_.empty(); }
  // A cheap test whether flush() or read() may do anything, or a receipt is due.
  bool may_progress() const {
    return !idle() || maybe_readable() || owes_receipt() || !write_error_.ok();
  }
  // Whether a part of a large message would be written at once, or before what waits for room.
  bool has_room(const SendOrder& order) const {
    if ((out_.empty() || deferred_) && channel_->maybe_writable()) return true;
    if (out_.empty() || out_.back().order.ticket <= order.ticket) return false;
    return num_large_ == 0 || (num_large_ == 1 && out_.back().has_turn && out_.back().written == 0);
  }
  // The same, if it may also wait behind small messages. A lane that others could stand in for has
  // to be busy with them.
  bool has_room_behind(const SendOrder& order, int64_t now_ns) const {
    return has_room(order) || (num_large_ == 0 && !out_.empty() && (!keeps_ || is_busy(now_ns)));
  }
  size_t queued_bytes() const { return queued_bytes_; }
  // Whether frames wait for room, and the channel has taken bytes not long ago: its rail is busy
  // with them.
  bool is_busy(int64_t now_ns) const;
  // Whether a frame for which `is_it(frame)` has not been confirmed.
  template <typename IsIt>
  bool holds(IsIt is_it) const {
    return std::any_of(kept_.begin(), kept_.end(), is_it) ||
           std::any_of(out_.begin(), out_.end(), is_it);
  }
  // Bytes that have not arrived, and the rate at which they do, as far as the kernel knows; a rate
  // of 0 is not known. Idle: it has carried nothing for so long that its rate may be another one.
  struct Prospect {
    double queued_bytes = 0;
    double bytes_per_second = 0;
    bool is_idle = false;
  };
  Prospect prospect(int64_t now_ns);
  // Frames that are not written, or not confirmed.
  size_t num_unfinished() const { return out_.size() + kept_.size(); }
  // Whether to confirm the frames that have come in a frame of its own: they are many, the peer
  // waits for the receipt, or confirm_soon() has been called since.
  bool should_confirm() const;
  void confirm_soon() { receipt_awaited_ |= owes_receipt(); }
  // Whether the peer showed life since the last call, or the reader had no room at the last read():
  // then we cause its silence. Ends the lane's silence.
  bool take_sign_of_life();
  // Nothing has come for another `ns`, while other lanes were heard; for how long in all.
  int64_t add_silence(int64_t ns) { return silent_ns_ += ns; }
  int64_t stalled_ns(int64_t now_ns) { return stall_watch_.stalled_ns(*channel_, now_ns); }

  // From now on parts of large messages, and the channel's queue, have so many bytes at most; 0: as
  // many as the channel carries in some milliseconds. More where it had too little to send: then a
  // rail may have been idle.
  void limit_credit(size_t bytes);
  size_t credit(int64_t now_ns);
  // An urgent message waits for so many bytes at most: those of a part or of a small message that
  // has begun, of the channel's queue, and on their way. 0 while no large message was there.
  uint64_t blocking_bytes() const;

  // Tells the meter what the channel has carried since the last call.
  void measure();

  // The numbered frames that are not confirmed, oldest first. The lane must not be used again.
  std::deque<OutFrame> take_back();

  // Drops the queue, and touches no memory of requests after this call. A frame that is partly
  // written is copied and completed, at most kMaxPayloadBytes: with other bytes than its own the
  // peer could finish a receive with wrong data.
  void drop_queued();
  // Drops everything: the channel takes no more.
  void drop_all();

 private:
  // Frames have come that the peer does not know of.
  bool owes_receipt() const { return keeps_ && num_read_ != num_told_; }
  void write_at_once();
  bool may_leave(OutFrame& frame);
  Result<bool> write_batch(bool* wrote_any);
  void frame_written();
  Status confirm(uint64_t num_frames);
  // The meter is told when a frame begins and ends.
  bool is_metered(const OutFrame& frame) const;
  // A small one that the peer confirms at once.
  bool is_sample(const OutFrame& frame) const;
  void begin_metered(OutFrame& frame);
  void note_wait(OutFrame& frame);
  void end_metered(const OutFrame& frame);
  void end_all_metered();
  void note_urgent();
  void note_read();
  void trace(bool is_sent, const FrameHeader& header, bool is_first, size_t bytes);
  Result<bool> read_header();
  Result<size_t> read_payload();
  size_t may_read(size_t most);
  Result<bool> read_trailer();
  enum class Ahead { yes, no };
  Result<size_t> take(std::byte* to, size_t bytes, Ahead ahead = Ahead::yes);
  Result<size_t> take_in_place(const Sink& sink, size_t bytes);
  void count_taken(size_t bytes);

  const std::unique_ptr<Channel> channel_;
  const uint64_t job_id_;
  const bool keeps_;
  const bool checks_;
  RailCounters* const counters_;
  RailMeter* meter_;  // null: nothing is measured
  LaneReader* const reader_;
  const size_t ticket_class_;

  std::deque<OutFrame> out_;
  size_t queued_bytes_ = 0;
  int64_t taken_ns_ = 0;        // when the channel took bytes last, if frames are kept
  size_t num_large_ = 0;        // parts of large messages in out_
  bool deferred_ = false;       // all of out_ waits for flush_deferred()
  std::deque<OutFrame> kept_;   // written, not confirmed
  uint64_t num_confirmed_ = 0;  // numbered frames
  Status write_error_;          // of a push; reported by flush()

  // Read, and not yet taken.
  std::vector<std::byte> ahead_;
  size_t ahead_begin_ = 0;
  size_t ahead_bytes_ = 0;

  HeaderBytes in_bytes_{};
  size_t in_header_done_ = 0;
  FrameHeader in_;
  Intake intake_;
  bool in_frame_ = false;  // the header is complete
  size_t in_done_ = 0;     // of the payload
  uint32_t in_checksum_ = 0;
  std::array<std::byte, kTrailerBytes> in_trailer_{};
  size_t in_trailer_done_ = 0;
  uint64_t num_read_ = 0;  // numbered frames
  uint64_t num_told_ = 0;  // of these, the last header that left told the peer
  size_t untold_bytes_ = 0;
  bool receipt_awaited_ = false;
  bool heard_ = false;
  bool held_back_ = false;
  bool limits_arrivals_ = false;

  Channel::Flow measured_;            // at the last measure()
  uint64_t given_bytes_ = 0;          // to the channel since
  uint64_t given_payload_bytes_ = 0;  // of these

  Prospect prospect_;  // at prospect_ns_
  int64_t prospect_ns_ = 0;
  size_t bytes_since_prospect_ = 0;
  int64_t carried_ns_ = 0;  // when it was last seen to carry more than small messages

  // Of large messages. While the credit is not limited, parts have the size that suits them.
  size_t credit_ = kMaxPayloadBytes;
  bool adapts_credit_ = false;
  int64_t credit_ns_ = 0;  // when it was adapted last
  bool was_large_ = false;

  StallWatch stall_watch_;
  int64_t silent_ns_ = 0;
};

}  // namespace dmlcomm::transport
