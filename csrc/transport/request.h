// Requests: messages that the engine gives to a Link to send or receive. The engine owns them, and
// keeps them in place until they are done or the link has failed.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <string>

#include "transport/coverage.h"
#include "transport/frame.h"
#include "transport/remote_memory.h"

namespace dmlcomm::transport {

// Striped over all rails that lead to the peer.
constexpr uint8_t kAnyRail = 0xff;

// Messages up to this size are sent at once when the receiver cannot read them by itself. Large
// enough to save the wait for `open` where latency counts, small enough to be buffered. Others are
// large.
constexpr size_t kEagerBytes = 64 * 1024;

// Which of the segments that wait for a lane leaves first: the smallest. Small messages do not wait
// for large ones of the same ticket: an operation of a few kilobytes beside one of megabytes takes
// little longer than alone. Control frames go first. Point-to-point messages have no sequence, and
// go before those of collectives with the same ticket and size class.
struct SendOrder {
  uint8_t ticket = 0;     // of its operation
  bool is_large = false;  // more than kEagerBytes; set by the link
  uint64_t sequence = 0;  // of the collective
  uint32_t step = 0;      // of its schedule

  auto operator<=>(const SendOrder&) const = default;
};
constexpr SendOrder kSendLast{UINT8_MAX, true, UINT64_MAX, UINT32_MAX};

// One message to send. The memory belongs to the caller and must not change until on_sent().
struct SendRequest {
  Tag tag = 0;
  OpInfo op;
  const std::byte* data = nullptr;
  size_t bytes = 0;
  uint8_t rail = kAnyRail;  // another one carries it where this one is dead
  SendOrder order;
  uint64_t age = 0;  // of its operation: of two, the one that was called first has the smaller one
  RankReport report;
  bool tells_rate = false;  // its operation is large enough to tell the rates of rails
  void* owner = nullptr;    // for the engine
  // Of the first message of an urgent operation: how long that waited to start; see UrgentWaits.
  int64_t waited_ns = -1;

  // --- the link's own ---
  uint64_t id = 0;
  int64_t waits_since_ns = 0;  // of such a message, which may leave from then on
  size_t queued = 0;           // bytes that lanes have taken
  uint32_t parts_left = 0;     // of these, frames that are not through
};

// One message to receive, in one of two ways:
//  - direct: `destination` holds `bytes`; the link writes there as bytes arrive.
//  - streamed: `destination` is null. Bytes pass through `window`, a ring of `window_bytes` that
//    the engine provides when the first byte comes; it reads them with Link::fetch() and frees them
//    with Link::release(). Used to reduce.
// While `ready` is false the destination is not written; see Link::make_ready().
struct RecvRequest {
  Tag tag = 0;
  OpInfo op;
  std::byte* destination = nullptr;
  size_t bytes = 0;
  std::byte* window = nullptr;
  size_t window_bytes = 0;
  bool ready = true;
  // Set by the link: parts of the message arrive in any order, and wait in the window while the
  // destination is not ready. The window has to hold the whole message.
  bool scattered = false;
  int source = -1;        // rank; set by the link when it matches a receive from any source
  void* owner = nullptr;  // for the engine

  // Bytes that have arrived and may be fetched (streamed), or are in place (direct). An offered
  // message has all its bytes at the sender: `offered` is set, and the engine pulls them.
  size_t arrived = 0;
  size_t consumed = 0;  // streamed: freed by release(); offered: copied by take_offer()
  bool offered = false;
  RankReport report;  // of the frames that have come

  // --- the link's own ---
  uint64_t offer_id = 0;
  RemoteAddress offer;
  Access access = Access::idle;  // of the pending read
  bool shared = false;           // the sender has been asked to write parts of it
  uint64_t posted_order = 0;     // of receives from any source against others
  Coverage covered;              // scattered: bytes that are in place
};

// Events of a link, for the engine. Called inside Link calls and Mesh::poll(), with the progress
// lock held.
class LinkEvents {
 public:
  virtual ~LinkEvents() = default;

  // The memory of the message may change again.
  virtual void on_sent(SendRequest& request) = 0;

  // Sets window and window_bytes of a request: at least kEagerBytes, or the whole message. An
  // earlier window is not used any more.
  virtual void provide_window(RecvRequest& request) = 0;

  // More bytes have arrived, or the message has been offered.
  virtual void on_arrived(RecvRequest& request) = 0;

  // The first receive from any source that is posted for `tag` before `before_order`, or null.
  // The engine forgets it: it belongs to the asking link from now on.
  virtual RecvRequest* claim_any_source(Tag tag, uint64_t before_order) = 0;

  // A frame of collective `tag` came. Returns an error if this rank does another operation at this
  // place of the sequence, ok if it does the same one or has not come there yet.
  virtual Status check_operation(int peer, Tag tag, const OpInfo& theirs) = 0;

  // The lowest sequence number of a collective that has not ended here. Peers' numbers are near it.
  virtual uint64_t oldest_collective() const = 0;

  // Whether more than one operation runs here: then none may hold back the lanes that they share.
  virtual bool runs_others() const = 0;

  // The error for a message of another size than the receive expects.
  virtual Status size_mismatch(int peer, const RecvRequest& ours, const OpInfo& theirs,
                               uint64_t their_bytes) = 0;

  // A rail to the peer died, or came back; others carry on. `text` names it and the cause.
  virtual void on_rail_event(int peer, bool lost, const std::string& text) = 0;

  // The link is unusable. `reported`: the peer's communicator has failed, and `status` is its
  // reason; else `status` is the link's own error. Called once per link.
  virtual void on_failed(int peer, const Status& status, bool reported) = 0;

  // The peer has left in good order; all its earlier messages have been delivered.
  virtual void on_goodbye(int peer) = 0;
};

}  // namespace dmlcomm::transport
