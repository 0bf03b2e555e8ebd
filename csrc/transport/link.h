// Link: all messages between this rank and one peer, over the lanes of its rails.
//
// It matches messages with receives by tag, holds large data back until the peer has begun the
// operation, and keeps the first failure. It does not reduce, and knows no schedule. LaneSet
// chooses the lane of each frame, and replaces a lane that dies.
//
// A message travels in one of three ways, by its size and by the peer's access to our memory:
//   small        data frames at once; the peer buffers them until the receive is posted. The bytes
//                that a peer may have to buffer are bounded: a message beyond that is announced by
//                `request`, and follows its `grant`.
//   offered      a header says where the bytes are; the receiver reads them by itself, or large
//                ones together with the sender (cooperative_copy.h), and acks.
//   large        data frames, but only after the peer's `open` (collectives) or `grant` (point-to-
//                point, announced by `request`), so they never block the frames behind them.
//
// With several rails, or lanes for urgent messages, parts of messages arrive in any order, and
// where lanes may be lost (LaneSet) those of a lost lane do. So a receive that reduces, or is not
// ready, has a window for the whole message: no lane ever waits for another one. Otherwise, while a
// collective runs alone, windows are small and hold the lane back when they are full. As soon as
// another operation runs they grow, because it may need the frames behind.
//
// All calls require the progress lock. Until a channel is attached sends queue up. LinkEvents are
// called from inside these calls; they take notes, and do not call back this link. But on_failed()
// and on_goodbye() may use other links, and on_failed() may end() this one, which tells the peer.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "transport/cooperative_copy.h"
#include "transport/early_messages.h"
#include "transport/lane_set.h"
#include "transport/request.h"

namespace dmlcomm::transport {

// Messages up to this size are copied through the ring in shared memory, larger ones are offered: a
// process_vm_readv call costs about as much as copying this twice.
constexpr size_t kOfferBytes = 8 * 1024;
// Bytes of an offered message that are read in one go, so that others get their turn.
constexpr size_t kPullBytes = 1u << 20;
// Bound on the memory for early messages of a peer: their bytes, and a record for each.
constexpr size_t kMaxUnexpectedBytes = 16u << 20;
constexpr size_t kUnexpectedRecordBytes = 256;

struct LinkOptions {
  int rank = 0;
  int peer = 0;
  uint64_t job_id = 0;
  size_t num_rails = 1;
  LinkEvents* events = nullptr;
  RailCounters* counters = nullptr;  // one per rail
  size_t lanes_per_rail = 1;         // lane i is on rail i modulo num_rails
  uint8_t first_rail = kAnyRail;     // leads to the peer; the others are detours
  RailMeter* meters = nullptr;       // one per rail, or null
  size_t credit_bytes = 0;           // see Lane::limit_credit(); 0: no limit at first
  size_t num_classes = 0;            // of urgent tickets, with lanes of their own: see LaneSet
  bool reconnects = false;           // the only lane, too, may be lost and come back
  // The peer never writes to our memory: it may be stopped in the middle, and we go on without it.
  bool reads_alone = false;

  size_t num_lanes() const { return num_rails * (lanes_per_rail + num_classes); }
};

class Link final : private LaneReader {
 public:
  enum class State { connecting, up, left, failed };

  explicit Link(const LinkOptions& options);
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;

  int peer() const { return options_.peer; }
  State state() const { return state_; }
  const Status& error() const { return error_; }
  std::string description() const;

  // A connection is open: queued sends leave. Both ends know it by the same number.
  void attach(size_t index, std::unique_ptr<Channel> channel, uint64_t connection = 0);
  // Of lane `index`; null if it is not connected.
  Channel* channel(size_t index = 0);
  size_t num_lanes() const { return lanes_.num_lanes(); }
  bool is_usual(size_t lane) const { return lanes_.is_usual(lane); }
  bool has_lane() const { return lanes_.any() != nullptr; }
  // The lanes that died since the last call.
  std::vector<size_t> take_lost_lanes() { return std::exchange(lost_lanes_, {}); }
  // Lanes for urgent messages that are of use since the last call; they are not connected.
  std::vector<size_t> take_wanted_lanes() { return lanes_.take_wanted(); }
  // Whether a lane that dies is no end of the link: its frames are kept, for others or for the lane
  // when it is connected again.
  bool may_lose_lanes() const { return lanes_.keeps_frames(); }
  bool is_alone(size_t index) const { return lanes_.is_alone(index); }
  // Gives up the lane; the others carry on, or without others the next one. Only where frames are
  // kept.
  void lose_lane(size_t index, const std::string& reason);
  // Gives up lanes that carry bytes of which none was confirmed for a while (stall_watch.h). Those
  // of classes go with the usual lane of their rail, which a heartbeat asks for before.
  void lose_stalled_lanes(int64_t now_ns);
  // Tells the meters what its lanes have carried since the last call.
  void measure() {
    lanes_.for_each_lane([](size_t, Lane& lane) { lane.measure(); });
  }
  // See Lane::limit_credit(); of lanes to other hosts.
  void limit_credit() { lanes_.limit_credit(); }
  // See Channel::mark_class(); of lanes to other hosts.
  void mark_class(uint8_t dscp) { lanes_.mark_class(dscp); }
  // `visit(rail, lane)` for every lane.
  template <typename Visit>
  void for_each_lane(Visit visit) const {
    lanes_.for_each_lane(
        [&](size_t index, Lane& lane) { visit(index % options_.num_rails, lane); });
  }

  void send(SendRequest& request);
  void recv(RecvRequest& request);
  // The destination of a posted receive may be written from now on.
  void make_ready(RecvRequest& request);
  // Says that this rank has begun collective `sequence`: the peer may send it large data.
  void open(uint32_t sequence, const OpInfo& op);

  // Arrival order of the oldest buffered or announced message with this tag; 0 if there is none.
  uint64_t oldest_unexpected(Tag tag) const;

  // `bytes` of a streamed message from `position`; consumed <= position, end <= arrived, and no
  // multiple of the window size strictly inside. Returns a pointer into the window, or copies an
  // offered message to `scratch`. Null while that copy is pending (ask again, with the same
  // arguments), and if the peer has revoked it; the reason is then on its way.
  Result<const std::byte*> fetch(RecvRequest& request, size_t position, size_t bytes,
                                 std::byte* scratch);
  // Frees the window up to `position`.
  void release(RecvRequest& request, size_t position);
  // The peer's memory; null if it cannot be reached.
  RemoteMemory* memory() const {
    Lane* lane = lanes_.any();
    return lane == nullptr ? nullptr : lane->channel().memory();
  }
  // Reads or writes the peer's memory, with its permission; an error fails the link.
  Status read_memory(RemoteAddress from, void* to, size_t bytes, Access* access);
  Status write_memory(RemoteAddress to, const void* from, size_t bytes, Access* access);
  // All of an offered message has been taken: the sender's memory is free again.
  void finish_offer(RecvRequest& request);
  // Copies a part of an offered message to its destination, together with the sender if that is
  // faster, and finishes the offer after the last part.
  Status take_offer(RecvRequest& request, bool* moved, bool* complete);

  // Reads and writes as much as possible; true if anything moved, or a lane or the link has ended.
  bool progress();
  // Confirms all frames that have been read, if the peer keeps them: now, or in the next progress()
  // that can.
  void confirm_soon();
  // Writes the small messages that were held back to leave together.
  void flush_deferred();
  // Bytes wait to be written: epoll has to watch for writability.
  bool wants_to_write() const { return state_ == State::up && !lanes_.idle(); }
  // Frames that are not written, or may still be lost with a lane and would have to be repeated.
  size_t num_unconfirmed() const { return state_ == State::up ? lanes_.num_unfinished() : 0; }
  // Bytes wait for room, or the peer's kernel has not confirmed them.
  bool has_bytes_on_the_way() const { return wants_to_write() || lanes_.has_bytes_on_the_way(); }
  // Requests of the engine wait for the peer.
  bool has_outstanding() const;

  // Sends a heartbeat if nothing else is on its way.
  void heartbeat();
  // Whether the peer showed life since the last call, and if so, `silent_ns` after it did before.
  // Gives up lanes over which nothing comes while others show that the peer lives.
  bool take_sign_of_life(int64_t silent_ns);

  // Says goodbye, as far as possible without blocking.
  void send_goodbye();
  // The link is unusable: on_failed() reports it. The memory of requests is not touched afterwards.
  void fail(const Status& status);
  // The communicator has failed: tells the peer why, as far as possible without blocking, and ends
  // the link. The link may touch the memory of requests during the call, and not afterwards. A lane
  // that comes later tells the peer, too.
  void end(const Status& reason);
  bool has_ended() const { return !end_reason_.ok(); }
  // After end(): the peer, which has been stopped, may yet write to memory of receives.
  bool has_writer() const { return has_writer_; }
  // After end(): true while the last frames for the peer are still queued.
  bool flush_last_words();
  // After end() or goodbye: discards all input. Otherwise two ends with full buffers would wait for
  // each other, and closing would reset the connection before our last bytes arrive. False once the
  // peer has closed as well.
  bool discard_input();

 private:
  Status begin_frame(Intake& intake, const FrameHeader& header) override;
  Sink room_for_payload(Intake& intake, const FrameHeader& header, size_t done) override;
  void payload_arrived(Intake& intake, const FrameHeader& header, size_t done) override;
  Status end_frame(Intake& intake, const FrameHeader& header) override;
  void request_written(SendRequest& request) override;

  void beat(Lane& lane) const { lane.push(OutFrame(header_of(FrameKind::heartbeat, 0))); }
  FrameHeader header_of(FrameKind kind, Tag tag) const;
  FrameHeader header_of(const SendRequest& request) const;
  static OutFrame announcement(const FrameHeader& header, const SendRequest& request);
  OutFrame control(FrameKind kind, Tag tag, uint64_t id, const OpInfo& op) const;
  void push_control(FrameKind kind, Tag tag, uint64_t id, const OpInfo& op, uint64_t offset = 0);
  void push_message(SendRequest& request);
  void push_copy(const FrameHeader& header, SendRequest& request);
  void dispatch(SendRequest& request);
  uint64_t sequence(Tag tag) const {
    return widen_sequence(sequence_of(tag), options_.events->oldest_collective());
  }
  bool may_send_unasked(const SendRequest& request) const;
  void ask_to_send(FrameHeader header, SendRequest& request);
  void offer(RemoteMemory& memory, FrameHeader header, SendRequest& request);
  Status begin_data(Intake& intake, const FrameHeader& header);
  Result<RecvRequest*> begun(const FrameHeader& header) const;
  Status end_data(Intake& intake, const FrameHeader& header);
  bool has_come(const FrameHeader& header) const {
    return header.number != 0 && numbers_seen_.contains(header.number - 1);
  }
  Status deliver_unexpected(const FrameHeader& header);
  void forget(const RecvRequest* request);
  void say_last_words();
  void shut_down();
  bool progress_lane(size_t index, Lane& lane);
  bool confirm(Lane& lane);
  void lose_silent_lanes(const std::vector<size_t>& silent, int64_t ns);
  Status announce(Intake& intake, const FrameHeader& header);
  Status on_open(const FrameHeader& header);
  void count_taken(const FrameHeader& header);
  Status on_credit(uint64_t cost);
  void peer_has_begun(Tag tag);
  Status complete_offer(uint64_t id);
  Status grant_request(uint64_t id);
  Status read_offer(RecvRequest& request, bool* moved, bool* complete);
  Status copy_offer_together(RecvRequest& request, bool* moved, bool* complete);
  Status on_share(const FrameHeader& header);
  bool write_shared();
  CooperativeMemory* cooperative() const {
    return memory() == nullptr ? nullptr : memory()->cooperative();
  }
  Status on_abort(const Intake& intake, const FrameHeader& header);
  Status on_rail_lost(const FrameHeader& header);
  Status on_goodbye(Intake& intake);
  void leave_if_all_said_goodbye();
  Result<RecvRequest*> match(const FrameHeader& header);
  void accept_announced(RecvRequest& request, const EarlyMessage& message);
  bool take_unexpected(RecvRequest& request);
  void stop_holding_back(RecvRequest& request);
  void store(RecvRequest& request, size_t offset, const std::vector<std::byte>& bytes);
  Status check_sizes(const RecvRequest& request, const FrameHeader& header) const;

  // Constant after construction.
  const LinkOptions options_;

  State state_ = State::connecting;
  Status error_;
  bool reported_ = false;  // error_ is the peer's
  Status end_reason_;      // of end()
  bool said_goodbye_ = false;
  bool is_shut_down_ = false;  // after the last word of an ended link
  LaneSet lanes_;
  std::vector<size_t> lost_lanes_;
  std::vector<size_t> lanes_to_lose_;  // the peer has given them up
  std::vector<uint64_t> connections_;  // by lane

  // Out.
  uint64_t next_id_ = 1;
  std::vector<SendRequest*> waiting_;                     // before attach(), or for open
  std::vector<SendRequest*> offered_;                     // for ack
  std::map<uint64_t, SendRequest*> requested_;            // for grant, by id
  std::vector<std::pair<uint32_t, OpInfo>> early_opens_;  // open() before attach()
  Coverage begun_;          // collectives that the peer has begun, and those that have ended here
  size_t num_writing_ = 0;  // requests whose bytes are queued
  // Cost of the small messages that were sent unasked, and of those that have met their receives.
  uint64_t spent_credit_ = 0;
  uint64_t returned_credit_ = 0;

  // In.
  std::deque<RecvRequest*> posted_;    // many of an operation in blocks, and the first comes first
  std::vector<RecvRequest*> granted_;  // their messages are on the way
  EarlyMessages early_;                // came before their receives
  uint64_t taken_credit_ = 0;          // of the peer: cost of messages that have met their receives
  uint64_t told_credit_ = 0;           // what the peer knows of that
  Coverage numbers_seen_;              // of frames
  size_t num_taken_offers_ = 0;        // offered messages the engine is reading
  bool has_writer_ = false;            // see has_writer()
  CooperativeCopy cooperative_copy_;   // of offered messages, in and out
};

}  // namespace dmlcomm::transport
