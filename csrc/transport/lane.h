// Lane: frames over one channel. It writes queued frames, and reads frames into places that its
// owner names. Which message a frame belongs to is Link's business.
//
// All calls come with the progress lock held. Errors are returned, and the lane is unusable after
// one.
#pragma once

#include <deque>
#include <memory>
#include <string>

#include "base/status.h"
#include "transport/channel.h"
#include "transport/frame.h"
#include "transport/request.h"

namespace dmlcomm::transport {

// Where the next bytes of the payload that is being read go. Empty memory means: not now.
struct Sink {
  std::byte* data = nullptr;
  size_t bytes = 0;
};

// The reader's questions, answered by Link.
class LaneReader {
 public:
  virtual ~LaneReader() = default;

  // A header is complete; its payload comes next.
  virtual Status begin_frame(const FrameHeader& header) = 0;
  // Room for the payload from `done` on; no memory holds the lane back until resume.
  virtual Sink room_for_payload(const FrameHeader& header, size_t done) = 0;
  // `bytes` more of the payload are in place; `done` in all.
  virtual void payload_arrived(const FrameHeader& header, size_t done) = 0;
  // The frame is complete.
  virtual Status end_frame(const FrameHeader& header) = 0;
  // All bytes of the request have been given to the channel.
  virtual void request_written(SendRequest& request) = 0;
};

class Lane {
 public:
  Lane(std::unique_ptr<Channel> channel, uint64_t job_id, LaneReader* reader);

  Channel& channel() { return *channel_; }

  // Queues a frame, and writes what fits. `payload` is borrowed until written; `completes`, if any,
  // is reported then.
  void push(const FrameHeader& header, const std::byte* payload, SendRequest* completes);
  // The same with a payload the lane keeps.
  void push_owned(const FrameHeader& header, std::string payload);

  // Writes queued frames. Sets `moved` if anything was written.
  Status flush(bool* moved);
  // Reads frames until the channel is empty, the reader has no room, or `max_bytes` have come.
  Status read(size_t max_bytes, bool* moved);

  bool idle() const { return out_.empty(); }
  // Bytes have come since the last call.
  bool take_heard() { return std::exchange(heard_, false); }
  // The reader had no room at the last read(): the peer's silence is our doing.
  bool held_back() const { return held_back_; }

  // Gives up what is queued without touching the memory of requests again: a frame that is partly
  // written is completed with zeros, the others are dropped.
  void drop_queued();

 private:
  struct OutFrame {
    HeaderBytes header;
    const std::byte* payload = nullptr;
    size_t payload_bytes = 0;
    size_t written = 0;  // header included
    SendRequest* completes = nullptr;
    std::string owned;
  };

  Result<bool> write_frame(OutFrame& frame);
  Result<bool> read_header();
  Result<size_t> read_payload();

  const std::unique_ptr<Channel> channel_;
  const uint64_t job_id_;
  LaneReader* const reader_;

  std::deque<OutFrame> out_;
  Status write_error_;  // of a push; reported by flush()

  HeaderBytes in_bytes_{};
  size_t in_header_done_ = 0;
  FrameHeader in_;
  bool in_frame_ = false;  // the header is complete
  size_t in_done_ = 0;     // of the payload
  bool heard_ = false;
  bool held_back_ = false;
};

}  // namespace dmlcomm::transport
