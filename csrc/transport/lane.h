// Lane: frames over one channel. It writes queued frames, and reads frames into places that its
// owner names. Which message a frame belongs to is Link's business.
//
// Small frames cost system calls rather than bytes: those that are queued together leave in one
// call, and a read takes along what stands behind the bytes that it is for.
//
// Where the link has other lanes to fall back on, it keeps what it has written until the peer says
// that it was read: each header tells the other side how many numbered frames have come over this
// lane. take_back() returns what is not confirmed.
//
// All calls come with the progress lock held. Errors are returned, and the lane is unusable after
// one.
#pragma once

#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "transport/channel.h"
#include "transport/frame.h"
#include "transport/rail_counters.h"
#include "transport/request.h"

namespace dmlcomm::transport {

// Where the next bytes of the payload that is being read go. Empty memory means: not now.
struct Sink {
  std::byte* data = nullptr;
  size_t bytes = 0;
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
  // All bytes of the request have been given to the channel, and confirmed where that is kept.
  virtual void request_written(SendRequest& request) = 0;
};

// A frame on its way out.
struct OutFrame {
  explicit OutFrame(const FrameHeader& h) : header(h) {}

  FrameHeader header;
  HeaderBytes bytes{};
  const std::byte* payload = nullptr;  // borrowed; unused where `owned` is not empty
  SendRequest* completes = nullptr;    // reported when the frame is through
  std::string owned;                   // the payload, where it is not borrowed
  bool is_part = false;                // of a large message: order does not matter
  bool more_follow = false;            // at once: then they are written together
  SendOrder order;
  size_t written = 0;  // header included
};

class Lane {
 public:
  // `keeps`: numbered frames are kept until the peer has confirmed them.
  Lane(std::unique_ptr<Channel> channel, uint64_t job_id, bool keeps, RailCounters* counters,
       LaneReader* reader);

  Channel& channel() { return *channel_; }
  Intake& intake() { return intake_; }

  // Queues a frame, and writes what fits; a small message waits for flush_deferred() or for a frame
  // that does not wait. A payload that is not owned by the frame is borrowed until `completes` is
  // reported.
  void push(OutFrame frame);
  void flush_deferred();

  // Writes queued frames. Sets `moved` if anything was written.
  Status flush(bool* moved);
  // Reads frames until the channel is empty, the reader has no room, or `max_bytes` have come.
  Status read(size_t max_bytes, bool* moved);

  // A cheap look whether read() may find something.
  bool maybe_readable() const {
    return ahead_bytes_ > 0 || held_back_ || channel_->maybe_readable();
  }

  bool idle() const { return out_.empty(); }
  // Whether a further frame would be written at once.
  bool has_room() const { return (out_.empty() || deferred_) && channel_->maybe_writable(); }
  size_t queued_bytes() const { return queued_bytes_; }
  // Frames that are not written, or not confirmed.
  size_t num_unfinished() const { return out_.size() + kept_.size(); }
  // Frames have come of which the peer should hear, without waiting for a frame that goes there
  // anyway: they are many, it waits for them, or confirm_soon() has been called since.
  bool should_confirm() const;
  void confirm_soon() { receipt_awaited_ |= owes_receipt(); }
  // Bytes have come since the last call.
  bool take_heard() { return std::exchange(heard_, false); }
  // The reader had no room at the last read(): the peer's silence is our doing.
  bool held_back() const { return held_back_; }

  // Since when bytes are on their way and none has been confirmed by the other end's kernel;
  // INT64_MAX where nothing waits. To be asked regularly.
  int64_t unconfirmed_since(int64_t now_ns);

  // The numbered frames that are not confirmed, oldest first. The lane must not be used again.
  std::deque<OutFrame> take_back();

  // Gives up what is queued without touching the memory of requests after this call. A frame that
  // is partly written is copied and completed, at most kMaxPayloadBytes: with anything but its own
  // bytes the peer could finish a receive that is wrong. The others are dropped.
  void drop_queued();
  // Gives up everything: the channel takes no more.
  void drop_all();

 private:
  // Frames have come that the peer has not been told of.
  bool owes_receipt() const { return keeps_ && num_read_ != num_told_; }
  void write_at_once();
  Result<bool> write_batch(bool* wrote_any);
  void frame_written();
  Status confirm(uint64_t num_frames);
  void note_read();
  Result<bool> read_header();
  Result<size_t> read_payload();
  Result<size_t> take(std::byte* to, size_t bytes);

  const std::unique_ptr<Channel> channel_;
  const uint64_t job_id_;
  const bool keeps_;
  RailCounters* const counters_;
  LaneReader* const reader_;

  std::deque<OutFrame> out_;
  size_t queued_bytes_ = 0;
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
  uint64_t num_read_ = 0;  // numbered frames
  uint64_t num_told_ = 0;  // of these, the last header that left told the peer
  size_t untold_bytes_ = 0;
  bool receipt_awaited_ = false;
  bool heard_ = false;
  bool held_back_ = false;

  uint64_t confirmed_bytes_ = 0;
  int64_t unconfirmed_since_ns_ = INT64_MAX;
};

}  // namespace dmlcomm::transport
