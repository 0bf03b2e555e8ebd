#include "transport/link.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "base/str_cat.h"

namespace dmlcomm::transport {
namespace {

// Bytes one progress() call reads, so that one busy peer does not starve the others.
constexpr size_t kReadBudgetBytes = 4u << 20;

// Gives every message that arrives before its receive its place in time, across links: a receive
// from any source takes the oldest. Guarded by the progress lock of the communicator; that several
// communicators share the counter only makes it grow faster.
std::atomic<uint64_t> arrival_order{1};

template <typename T>
bool erase_one(std::vector<T*>& items, T* item) {
  const auto it = std::find(items.begin(), items.end(), item);
  if (it == items.end()) return false;
  items.erase(it);
  return true;
}

SendRequest* take_by_id(std::vector<SendRequest*>& items, uint64_t id) {
  const auto it =
      std::find_if(items.begin(), items.end(), [id](SendRequest* r) { return r->id == id; });
  if (it == items.end()) return nullptr;
  SendRequest* found = *it;
  items.erase(it);
  return found;
}

}  // namespace

std::string Link::description() const {
  return lane_ ? lane_->channel().description() : "connecting";
}

void Link::attach(std::unique_ptr<Channel> channel) {
  DMLCOMM_CHECK(state_ == State::connecting);
  LaneReader* reader = this;
  lane_ = std::make_unique<Lane>(std::move(channel), options_.job_id, reader);
  state_ = State::up;
  for (const auto& [sequence, op] : early_opens_) open(sequence, op);
  early_opens_.clear();
  for (SendRequest* request : std::exchange(waiting_, {})) dispatch(*request);
}

FrameHeader Link::header_of(FrameKind kind, Tag tag) const {
  FrameHeader header;
  header.kind = kind;
  header.job_id = options_.job_id;
  header.source = static_cast<uint32_t>(options_.rank);
  header.tag = tag;
  return header;
}

void Link::push_control(FrameKind kind, Tag tag, uint64_t id, const OpInfo& op) {
  FrameHeader header = header_of(kind, tag);
  header.id = id;
  header.op = op;
  lane_->push(header, nullptr, nullptr);
}

// --- sending ---

void Link::send(SendRequest& request) {
  if (state_ == State::connecting) {
    waiting_.push_back(&request);
  } else if (state_ == State::up) {
    dispatch(request);
  }
  // On a link that is down the engine has been told, and ends the operation.
}

void Link::dispatch(SendRequest& request) {
  FrameHeader header = header_of(FrameKind::data, request.tag);
  header.op = request.op;
  header.message_bytes = request.bytes;
  if (lane_->channel().peer_can_pull() && request.bytes > kOfferBytes) {
    request.id = header.id = next_id_++;
    header.kind = FrameKind::offer;
    header.offset = reinterpret_cast<uintptr_t>(request.data);
    offered_.push_back(&request);
    lane_->push(header, nullptr, nullptr);
  } else if (request.bytes <= kEagerBytes) {
    push_message(request);
  } else if (is_point_to_point(request.tag)) {
    request.id = header.id = next_id_++;
    header.kind = FrameKind::request;
    requested_.push_back(&request);
    lane_->push(header, nullptr, nullptr);
  } else if (sequence_of(request.tag) <= opened_sequence_) {
    push_message(request);
  } else {
    waiting_.push_back(&request);
  }
}

// Cuts the message in frames; the last one reports the request.
void Link::push_message(SendRequest& request) {
  FrameHeader header = header_of(FrameKind::data, request.tag);
  header.op = request.op;
  header.id = request.id;
  header.message_bytes = request.bytes;
  ++num_writing_;
  size_t offset = 0;
  do {
    const size_t bytes = std::min<size_t>(kMaxPayloadBytes, request.bytes - offset);
    header.offset = offset;
    header.payload_bytes = static_cast<uint32_t>(bytes);
    const std::byte* payload = request.data + offset;
    offset += bytes;
    lane_->push(header, payload, offset == request.bytes ? &request : nullptr);
  } while (offset < request.bytes);
}

void Link::request_written(SendRequest& request) {
  --num_writing_;
  options_.events->on_sent(request);
}

void Link::open(uint32_t sequence, const OpInfo& op) {
  if (state_ == State::connecting) {
    early_opens_.emplace_back(sequence, op);
  } else if (state_ == State::up) {
    push_control(FrameKind::open, collective_tag(sequence, 0, 0), 0, op);
  }
}

Status Link::on_open(const FrameHeader& header) {
  DMLCOMM_RETURN_IF_ERROR(options_.events->check_operation(peer(), header.tag, header.op));
  opened_sequence_ = std::max<int64_t>(opened_sequence_, sequence_of(header.tag));
  for (SendRequest* request : std::exchange(waiting_, {})) dispatch(*request);
  return Status();
}

Status Link::complete_offer(uint64_t id) {
  SendRequest* request = take_by_id(offered_, id);
  if (request == nullptr) {
    return Status(StatusCode::protocol_error, str_cat("ack of unknown message ", id));
  }
  options_.events->on_sent(*request);
  return Status();
}

Status Link::grant_request(uint64_t id) {
  SendRequest* request = take_by_id(requested_, id);
  if (request == nullptr) {
    return Status(StatusCode::protocol_error, str_cat("grant of unknown message ", id));
  }
  push_message(*request);
  return Status();
}

// --- receiving ---

void Link::recv(RecvRequest& request) {
  if (request.ready && take_unexpected(request)) return;
  posted_.push_back(&request);
}

void Link::make_ready(RecvRequest& request) {
  request.ready = true;
  if (std::find(posted_.begin(), posted_.end(), &request) == posted_.end()) return;
  if (take_unexpected(request)) erase_one(posted_, &request);
}

uint64_t Link::oldest_unexpected(Tag tag) const {
  for (const Unexpected& message : unexpected_) {
    if (message.header.tag == tag) return message.order;
  }
  return 0;
}

// Gives the oldest waiting message with the request's tag to it.
bool Link::take_unexpected(RecvRequest& request) {
  const auto it = std::find_if(unexpected_.begin(), unexpected_.end(),
                               [&](const Unexpected& m) { return m.header.tag == request.tag; });
  if (it == unexpected_.end()) return false;
  const Unexpected message = std::move(*it);
  unexpected_.erase(it);
  unexpected_bytes_ -= message.bytes.size();
  if (Status status = check_sizes(request, message.header); !status.ok()) {
    fail(status);
    return true;
  }
  request.source = peer();
  if (message.header.kind != FrameKind::data) {
    accept_announced(request, message.header);
    return true;
  }
  if (!message.bytes.empty()) {
    if (request.destination == nullptr) options_.events->provide_window(request);
    std::byte* to = request.destination ? request.destination : request.window;
    std::memcpy(to, message.bytes.data(), message.bytes.size());
  }
  request.arrived = request.bytes;
  options_.events->on_arrived(request);
  return true;
}

// An offer or a request has met its receive.
void Link::accept_announced(RecvRequest& request, const FrameHeader& header) {
  request.source = peer();
  request.offer_id = header.id;
  if (header.kind == FrameKind::offer) {
    request.offered = true;
    request.offer_address = header.offset;
    request.arrived = request.bytes;
    ++num_taken_offers_;
    options_.events->on_arrived(request);
  } else {
    granted_.push_back(&request);
    push_control(FrameKind::grant, header.tag, header.id, header.op);
  }
}

Status Link::check_sizes(const RecvRequest& request, const FrameHeader& header) const {
  if (!is_point_to_point(header.tag) && !(request.op == header.op)) {
    DMLCOMM_RETURN_IF_ERROR(options_.events->check_operation(peer(), header.tag, header.op));
  }
  if (request.bytes == header.message_bytes) return Status();
  return options_.events->size_mismatch(peer(), request, header.op, header.message_bytes);
}

// The receive for the message that `header` begins or announces, or null if it is early.
Result<RecvRequest*> Link::match(const FrameHeader& header) {
  const auto it = std::find_if(posted_.begin(), posted_.end(),
                               [&](RecvRequest* r) { return r->tag == header.tag; });
  RecvRequest* request = it == posted_.end() ? nullptr : *it;
  if (is_point_to_point(header.tag)) {
    const uint64_t before = request ? request->posted_order : UINT64_MAX;
    if (RecvRequest* any = options_.events->claim_any_source(header.tag, before)) {
      request = any;
      if (Status status = check_sizes(*request, header); !status.ok()) return status;
      request->source = peer();
      return request;
    }
  }
  if (request == nullptr) {
    if (!is_point_to_point(header.tag)) {
      Status status = options_.events->check_operation(peer(), header.tag, header.op);
      if (!status.ok()) return status;
    }
    return request;
  }
  if (Status status = check_sizes(*request, header); !status.ok()) return status;
  posted_.erase(it);
  request->source = peer();
  return request;
}

Status Link::begin_frame(const FrameHeader& header) {
  current_ = nullptr;
  if (state_ == State::failed) return error_;  // the frame before ended the communicator
  if (header.source != static_cast<uint32_t>(peer())) {
    return Status(StatusCode::protocol_error,
                  str_cat("frame says it is from rank ", header.source));
  }
  if (header.kind != FrameKind::data) {
    in_buffer_.resize(header.payload_bytes);
    return Status();
  }
  if (header.offset > 0 || header.id != 0) {
    // A further part of a message whose first part met its receive, or a granted message.
    const auto it = std::find_if(granted_.begin(), granted_.end(), [&](RecvRequest* r) {
      return r->tag == header.tag && r->arrived == header.offset && r->offer_id == header.id &&
             r->bytes == header.message_bytes;
    });
    if (it == granted_.end()) {
      return Status(StatusCode::protocol_error,
                    str_cat("data at offset ", header.offset, " of a message nobody waits for"));
    }
    current_ = *it;
    return Status();
  }
  Result<RecvRequest*> request = match(header);
  if (!request.ok()) return request.status();
  current_ = *request;
  if (current_ != nullptr) {
    granted_.push_back(current_);
  } else if (header.message_bytes <= kEagerBytes) {
    in_buffer_.resize(header.payload_bytes);
  } else {
    return Status(StatusCode::protocol_error,
                  str_cat(header.message_bytes, " bytes came without being asked for"));
  }
  return Status();
}

Sink Link::room_for_payload(const FrameHeader& header, size_t done) {
  const size_t rest = header.payload_bytes - done;
  if (current_ == nullptr) {
    const bool full = unexpected_bytes_ + in_buffer_.size() > kMaxUnexpectedBytes;
    if (header.kind == FrameKind::data && full) return {};
    return {in_buffer_.data() + done, rest};
  }
  if (!current_->ready) return {};
  const size_t position = header.offset + done;
  if (current_->destination != nullptr) return {current_->destination + position, rest};
  if (current_->window == nullptr) options_.events->provide_window(*current_);
  const size_t at = position % current_->window_bytes;
  const size_t free = current_->consumed + current_->window_bytes - position;
  return {current_->window + at, std::min({rest, free, current_->window_bytes - at})};
}

void Link::payload_arrived(const FrameHeader& header, size_t done) {
  if (current_ == nullptr) return;
  current_->arrived = header.offset + done;
  // end_frame() reports the end; here only what can be worked on already.
  if (current_->destination == nullptr && current_->arrived < current_->bytes) {
    options_.events->on_arrived(*current_);
  }
}

Status Link::end_frame(const FrameHeader& header) {
  switch (header.kind) {
    case FrameKind::data: return end_data(header);
    case FrameKind::offer:
    case FrameKind::request: return announce(header);
    case FrameKind::ack: return complete_offer(header.id);
    case FrameKind::open: return on_open(header);
    case FrameKind::grant: return grant_request(header.id);
    case FrameKind::heartbeat: return Status();
    case FrameKind::abort: return on_abort(header);
    case FrameKind::goodbye:
      state_ = State::left;
      options_.events->on_goodbye(peer());
      return Status();
    case FrameKind::hello: break;
  }
  return Status(StatusCode::protocol_error, "a second hello");
}

Status Link::end_data(const FrameHeader& header) {
  if (current_ == nullptr) {
    unexpected_bytes_ += in_buffer_.size();
    unexpected_.push_back({header, std::move(in_buffer_), arrival_order++});
    in_buffer_ = {};
    return Status();
  }
  RecvRequest* request = std::exchange(current_, nullptr);
  if (header.offset + header.payload_bytes == request->bytes) {
    erase_one(granted_, request);
    request->arrived = request->bytes;
    options_.events->on_arrived(*request);
  }
  return Status();
}

Status Link::announce(const FrameHeader& header) {
  Result<RecvRequest*> request = match(header);
  if (!request.ok()) return request.status();
  if (*request != nullptr) {
    accept_announced(**request, header);
  } else {
    unexpected_.push_back({header, {}, arrival_order++});
  }
  return Status();
}

// The peer's communicator has failed: its reason becomes ours. `id` is the status code.
Status Link::on_abort(const FrameHeader& header) {
  reported_ = true;
  const bool known = header.id > 0 && header.id <= static_cast<uint64_t>(StatusCode::unsupported);
  return Status(known ? static_cast<StatusCode>(header.id) : StatusCode::aborted,
                std::string(reinterpret_cast<const char*>(in_buffer_.data()), in_buffer_.size()));
}

Result<const std::byte*> Link::fetch(RecvRequest& request, size_t position, size_t bytes,
                                     std::byte* scratch) {
  if (!request.offered) return request.window + position % request.window_bytes;
  DMLCOMM_RETURN_IF_ERROR(pull(request, position, bytes, scratch));
  return static_cast<const std::byte*>(scratch);
}

void Link::release(RecvRequest& request, size_t position) { request.consumed = position; }

Status Link::pull(RecvRequest& request, size_t position, size_t bytes, std::byte* destination) {
  Status status = read_memory(request.offer_address + position, destination, bytes);
  if (!status.ok()) fail(status);
  return status;
}

Status Link::read_memory(uint64_t address, void* destination, size_t bytes) {
  if (state_ == State::failed) return error_;
  return lane_->channel().pull(address, destination, bytes);
}

Status Link::write_memory(uint64_t address, const void* source, size_t bytes) {
  if (state_ == State::failed) return error_;
  return lane_->channel().push(address, source, bytes);
}

void Link::finish_offer(RecvRequest& request) {
  DMLCOMM_CHECK(request.offered);
  --num_taken_offers_;
  if (state_ == State::up) push_control(FrameKind::ack, request.tag, request.offer_id, request.op);
}

// --- progress and the end ---

bool Link::progress() {
  if (state_ != State::up) return false;
  bool moved = false;
  Status status = lane_->flush(&moved);
  if (lane_->channel().maybe_readable()) {
    // What the peer said last (why it aborts, goodbye) is read even where writing has failed.
    Status read_status = lane_->read(kReadBudgetBytes, &moved);
    if (!read_status.ok()) status = read_status;
  }
  if (!status.ok() && state_ == State::up) fail(status);
  return moved;
}

bool Link::has_outstanding() const {
  return !waiting_.empty() || !offered_.empty() || !requested_.empty() || num_writing_ > 0 ||
         !posted_.empty() || !granted_.empty() || num_taken_offers_ > 0;
}

void Link::heartbeat() {
  if (wants_to_write() || state_ != State::up) return;
  push_control(FrameKind::heartbeat, 0, 0, OpInfo());
}

bool Link::take_sign_of_life() {
  if (state_ != State::up) return true;
  const bool heard = lane_->take_heard();
  return lane_->channel().peer_showed_life() || heard || lane_->held_back();
}

void Link::send_goodbye() {
  if (state_ != State::up) return;
  push_control(FrameKind::goodbye, 0, 0, OpInfo());
  lane_->channel().shut_down();
}

void Link::fail(const Status& status) {
  if (state_ == State::failed) return;
  DMLCOMM_CHECK(!status.ok());
  const bool was_left = std::exchange(state_, State::failed) == State::left;
  error_ = status;
  if (!was_left) options_.events->on_failed(peer(), error_, reported_);
}

void Link::end(const Status& reason) {
  if (std::exchange(ended_, true)) return;
  if (lane_ && state_ != State::left) {
    FrameHeader header = header_of(FrameKind::abort, 0);
    header.id = static_cast<uint64_t>(reason.code());
    std::string text = reason.message().substr(0, kMaxReasonBytes);
    header.payload_bytes = static_cast<uint32_t>(text.size());
    lane_->drop_queued();
    lane_->push_owned(header, std::move(text));
  }
  state_ = State::failed;
  if (error_.ok()) error_ = reason;
  flush_last_words();
}

// Where writing fails the peer notices the closed connection.
bool Link::flush_last_words() {
  if (!ended_ || !lane_ || lane_->idle()) return false;
  bool moved = false;
  const Status status = lane_->flush(&moved);
  if (!status.ok()) lane_->drop_queued();
  if (status.ok() && !lane_->idle()) return true;
  lane_->channel().shut_down();
  return false;
}

bool Link::discard_input() {
  if (!lane_) return false;
  std::byte ignored[4096];
  const iovec part{ignored, sizeof(ignored)};
  for (;;) {
    Result<size_t> got = lane_->channel().read(&part, 1);
    if (!got.ok()) return false;
    if (*got == 0) return true;
  }
}

}  // namespace dmlcomm::transport
