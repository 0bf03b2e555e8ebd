#include "transport/link.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "base/clock.h"
#include "base/str_cat.h"
#include "transport/rail_meter.h"

namespace dmlcomm::transport {
namespace {

// Frames on their way beyond which a link copies no small messages: a sender that is faster than
// its reader has to wait.
constexpr size_t kMaxCopiesUnderWay = 256;
// Bytes one progress() call reads from a lane, so that one busy peer does not starve the others.
constexpr size_t kReadBudgetBytes = 4u << 20;
// A lane over which nothing comes for so long, while others bring heartbeats, leads nowhere.
constexpr int64_t kSilenceNs = 5 * kNsPerS;
// What counts of that time between two signs of life. Heartbeats come at least every 250 ms: a peer
// that was away for longer has been silent everywhere, and its lanes are heard one after the other.
constexpr int64_t kMaxSilenceStepNs = 500 * kNsPerMs;

// Gives every message that arrives before its receive its place in time, across links: a receive
// from any source takes the oldest. Guarded by the progress lock of the communicator; that several
// communicators share the counter only makes it grow faster.
std::atomic<uint64_t> arrival_order{1};

template <typename Items, typename T>
bool erase_one(Items& items, T* item) {
  const auto it = std::find(items.begin(), items.end(), item);
  if (it == items.end()) return false;
  items.erase(it);
  return true;
}

uint64_t cost_of(size_t bytes) { return bytes + kUnexpectedRecordBytes; }

SendRequest* take_by_id(std::vector<SendRequest*>& items, uint64_t id) {
  const auto it =
      std::find_if(items.begin(), items.end(), [id](SendRequest* r) { return r->id == id; });
  if (it == items.end()) return nullptr;
  SendRequest* const found = *it;
  items.erase(it);
  return found;
}

}  // namespace

Link::Link(const LinkOptions& options)
    : options_(options),
      lanes_({options.job_id, options.num_rails, options.lanes_per_rail, options.first_rail,
              options.credit_bytes, options.num_classes, options.reconnects},
             options.counters, options.meters, this),
      connections_(lanes_.num_lanes()) {}

std::string Link::description() const {
  Lane* lane = lanes_.any();
  return lane ? lane->channel().description() : "connecting";
}

Channel* Link::channel(size_t index) {
  Lane* lane = lanes_.lane(index);
  return lane ? &lane->channel() : nullptr;
}

void Link::attach(size_t index, std::unique_ptr<Channel> channel, uint64_t connection) {
  DMLCOMM_CHECK(lanes_.lane(index) == nullptr);
  connections_[index] = connection;
  lanes_.attach(index, std::move(channel));
  if (has_ended()) return say_last_words();
  if (state_ != State::connecting) return;
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

OutFrame Link::control(FrameKind kind, Tag tag, uint64_t id, const OpInfo& op) const {
  FrameHeader header = header_of(kind, tag);
  header.id = id;
  header.op = op;
  return OutFrame(header);
}

void Link::push_control(FrameKind kind, Tag tag, uint64_t id, const OpInfo& op, uint64_t offset) {
  OutFrame frame = control(kind, tag, id, op);
  frame.header.offset = offset;
  lanes_.push_ordered(std::move(frame));
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

FrameHeader Link::header_of(const SendRequest& request) const {
  FrameHeader header = header_of(FrameKind::data, request.tag);
  header.ticket = static_cast<uint16_t>(1 + request.order.ticket);
  header.op = request.op;
  header.report = request.report;
  header.id = request.id;
  header.message_bytes = request.bytes;
  return header;
}

void Link::dispatch(SendRequest& request) {
  const FrameHeader header = header_of(request);
  request.order.is_large = request.bytes > kEagerBytes;
  lanes_.expect(request.order);
  RemoteMemory* const memory = request.bytes > kOfferBytes ? this->memory() : nullptr;
  if (memory != nullptr && memory->peer_reaches_us()) {
    offer(*memory, header, request);
  } else if (may_send_unasked(request)) {
    push_message(request);
  } else if (request.order.is_large && !is_point_to_point(request.tag)) {
    waiting_.push_back(&request);
  } else {
    ask_to_send(header, request);
  }
}

// A collective that has begun at the peer has posted its receives.
bool Link::may_send_unasked(const SendRequest& request) const {
  if (!is_point_to_point(request.tag) && begun_.contains(sequence(request.tag))) return true;
  return !request.order.is_large &&
         spent_credit_ - returned_credit_ + cost_of(request.bytes) <= kMaxUnexpectedBytes;
}

// Goes with the small messages of its operation.
OutFrame Link::announcement(const FrameHeader& header, const SendRequest& request) {
  OutFrame frame(header);
  frame.order = request.order;
  frame.order.is_large = false;
  return frame;
}

void Link::ask_to_send(FrameHeader header, SendRequest& request) {
  header.kind = FrameKind::request;
  header.id = request.id = next_id_++;
  requested_.emplace(header.id, &request);
  lanes_.push_ordered(announcement(header, request));
}

// Cuts the message in frames, which report the request.
void Link::push_message(SendRequest& request) {
  if (request.waited_ns >= 0) request.waits_since_ns = now_ns() - request.waited_ns;
  const FrameHeader header = header_of(request);
  if (!request.order.is_large && request.id == 0) spent_credit_ += cost_of(request.bytes);
  if (lanes_.keeps_frames() && !request.order.is_large) return push_copy(header, request);
  ++num_writing_;
  if (request.order.is_large) return lanes_.push_large(header, request);
  lanes_.push(LaneSet::next_part(header, request, request.bytes), request.rail);
}

// Nobody waits for the receipt of a small message, unless many are under way already; but those of
// large operations and some others tell the rates of rails.
void Link::push_copy(const FrameHeader& header, SendRequest& request) {
  OutFrame frame(header);
  frame.order = request.order;
  frame.header.payload_bytes = static_cast<uint32_t>(request.bytes);
  frame.tells_rate = request.tells_rate;
  frame.waits_since_ns = request.waits_since_ns;
  const bool is_timed = request.tells_rate && request.bytes >= RailMeter::kLeastFrameBytes;
  frame.header.awaits_receipt = is_timed || lanes_.is_sampled(request) ? 1 : 0;
  const bool is_copied = lanes_.num_unfinished() < kMaxCopiesUnderWay;
  if (!is_copied) {
    frame.payload = request.data;
    frame.completes = &request;
    frame.header.awaits_receipt = 1;
    request.queued = request.bytes;
    request.parts_left = 1;
    ++num_writing_;
  } else if (request.bytes > 0) {
    frame.owned.assign(reinterpret_cast<const char*>(request.data), request.bytes);
  }
  lanes_.push(std::move(frame), lanes_.rail_for_small(request));
  if (is_copied) options_.events->on_sent(request);
}

void Link::request_written(SendRequest& request) {
  if (--request.parts_left > 0 || request.queued < request.bytes) return;
  --num_writing_;
  options_.events->on_sent(request);
}

void Link::open(uint32_t sequence, const OpInfo& op) {
  if (state_ == State::connecting) {
    early_opens_.emplace_back(sequence, op);
  } else if (state_ == State::up) {
    lanes_.push_first(control(FrameKind::open, collective_tag(sequence, 0, 0), 0, op));
  }
}

Status Link::on_open(const FrameHeader& header) {
  DMLCOMM_RETURN_IF_ERROR(options_.events->check_operation(peer(), header.tag, header.op));
  peer_has_begun(header.tag);
  return Status();
}

// A message of an operation shows as much as `open`: the peer posts its receives first.
void Link::peer_has_begun(Tag tag) {
  if (is_point_to_point(tag)) return;
  const uint64_t number = sequence(tag);
  if (begun_.contains(number)) return;
  begun_.add(0, options_.events->oldest_collective());  // nothing waits for these any more
  begun_.add(number, number + 1);
  for (SendRequest* request : std::exchange(waiting_, {})) dispatch(*request);
}

// A message that was sent unasked has met its receive: the peer may send others.
void Link::count_taken(const FrameHeader& header) {
  if (header.id != 0 || header.message_bytes > kEagerBytes) return;
  taken_credit_ += cost_of(header.message_bytes);
  if (taken_credit_ - told_credit_ < kMaxUnexpectedBytes / 4 || state_ != State::up) return;
  told_credit_ = taken_credit_;
  push_control(FrameKind::credit, 0, 0, {}, taken_credit_);
}

Status Link::on_credit(uint64_t cost) {
  if (cost < returned_credit_ || cost > spent_credit_) {
    return Status(StatusCode::protocol_error,
                  str_cat("credit for ", cost, " of the ", spent_credit_, " bytes that were sent"));
  }
  returned_credit_ = cost;
  return Status();
}

Status Link::complete_offer(uint64_t id) {
  SendRequest* request = take_by_id(offered_, id);
  if (request == nullptr) {
    return Status(StatusCode::protocol_error, str_cat("ack of unknown message ", id));
  }
  cooperative_copy_.forget(*request);
  options_.events->on_sent(*request);
  return Status();
}

Status Link::grant_request(uint64_t id) {
  const auto found = requested_.extract(id);
  if (found.empty()) {
    return Status(StatusCode::protocol_error, str_cat("grant of unknown message ", id));
  }
  push_message(*found.mapped());
  return Status();
}

// --- receiving ---

void Link::recv(RecvRequest& request) {
  if (request.ready && take_unexpected(request)) return;
  posted_.push_back(&request);
}

void Link::make_ready(RecvRequest& request) {
  request.ready = true;
  if (request.scattered && request.destination != nullptr && request.window != nullptr) {
    std::memcpy(request.destination, request.window, request.bytes);
  }
  if (std::find(posted_.begin(), posted_.end(), &request) == posted_.end()) return;
  if (take_unexpected(request)) erase_one(posted_, &request);
}

uint64_t Link::oldest_unexpected(Tag tag) const {
  const EarlyMessage* const oldest = early_.oldest(tag);
  return oldest == nullptr ? 0 : oldest->order;
}

// Gives the oldest waiting message with the request's tag to it.
bool Link::take_unexpected(RecvRequest& request) {
  const EarlyMessage* const early = early_.take(request.tag);
  if (early == nullptr) return false;
  const EarlyMessage& message = *early;
  if (Status status = check_sizes(request, message.header); !status.ok()) {
    fail(status);
    return true;
  }
  request.source = peer();
  if (message.header.kind != FrameKind::data) {
    accept_announced(request, message);
    return true;
  }
  request.report.merge(message.header.report);
  count_taken(message.header);
  store(request, 0, message.bytes);
  request.arrived = request.bytes;
  options_.events->on_arrived(request);
  return true;
}

// Puts what waited in a buffer where the request wants it.
void Link::store(RecvRequest& request, size_t offset, const std::vector<std::byte>& bytes) {
  if (bytes.empty()) return;
  const bool is_direct = request.destination != nullptr && request.ready;
  if (!is_direct && request.window == nullptr) options_.events->provide_window(request);
  std::byte* to = is_direct ? request.destination : request.window;
  std::memcpy(to + offset, bytes.data(), bytes.size());
}

// An offer or a request has met its receive.
void Link::accept_announced(RecvRequest& request, const EarlyMessage& message) {
  const FrameHeader& header = message.header;
  request.source = peer();
  request.report.merge(header.report);
  request.offer_id = header.id;
  if (header.kind == FrameKind::offer) {
    request.offered = true;
    request.offer = {header.offset};
    if (!message.bytes.empty()) {
      std::memcpy(&request.offer.key, message.bytes.data(), kKeyBytes);
    }
    request.arrived = request.bytes;
    ++num_taken_offers_;
    options_.events->on_arrived(request);
  } else {
    granted_.push_back(&request);
    lanes_.push_first(control(FrameKind::grant, header.tag, header.id, header.op));
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

Status Link::begin_frame(Intake& intake, const FrameHeader& header) {
  intake.request = nullptr;
  if (state_ == State::failed) return error_;  // the frame before ended the communicator
  if (header.source != static_cast<uint32_t>(peer())) {
    return Status(StatusCode::protocol_error,
                  str_cat("frame says it is from rank ", header.source));
  }
  intake.is_duplicate = has_come(header);
  if (header.kind == FrameKind::data && !intake.is_duplicate) return begin_data(intake, header);
  intake.buffer.resize(header.payload_bytes);
  return Status();
}

// The receive whose message has begun to come, or null.
Result<RecvRequest*> Link::begun(const FrameHeader& header) const {
  const bool in_order = header.number == 0;
  const auto it = std::find_if(granted_.begin(), granted_.end(), [&](RecvRequest* r) {
    return r->tag == header.tag && r->offer_id == header.id && r->bytes == header.message_bytes &&
           (!in_order || r->arrived == header.offset);
  });
  if (it != granted_.end()) return *it;
  const bool may_begin = header.id == 0 && (header.offset == 0 || !in_order);
  if (may_begin) return nullptr;
  return Status(StatusCode::protocol_error,
                str_cat("data at offset ", header.offset, " of a message nobody waits for"));
}

Status Link::begin_data(Intake& intake, const FrameHeader& header) {
  const bool is_first = header.offset == 0 && header.id == 0 && header.number == 0;
  Result<RecvRequest*> request = is_first ? Result<RecvRequest*>(nullptr) : begun(header);
  if (!request.ok()) return request.status();
  if (*request == nullptr) {
    request = match(header);
    if (!request.ok()) return request.status();
    if (*request != nullptr) granted_.push_back(*request);
  }
  intake.request = *request;
  if (intake.request != nullptr) {
    intake.request->report.merge(header.report);
    intake.request->scattered |= header.number != 0;
  } else if (header.message_bytes <= kEagerBytes) {
    intake.buffer.resize(header.payload_bytes);
  } else {
    return Status(StatusCode::protocol_error,
                  str_cat(header.message_bytes, " bytes came without being asked for"));
  }
  return Status();
}

Sink Link::room_for_payload(Intake& intake, const FrameHeader& header, size_t done) {
  const size_t rest = header.payload_bytes - done;
  RecvRequest* request = intake.request;
  if (request == nullptr) return {intake.buffer.data() + done, rest};
  const size_t position = header.offset + done;
  if (request->destination != nullptr && request->ready) {
    return {request->destination + position, rest, true};
  }
  if (!request->scattered && request->ready) {
    if (request->window == nullptr) options_.events->provide_window(*request);
    const size_t at = position % request->window_bytes;
    const size_t free = request->consumed + request->window_bytes - position;
    if (free > 0) return {request->window + at, std::min({rest, free, request->window_bytes - at})};
  }
  // The grant of a message of its own may be behind it, too.
  const bool may_hold_back = requested_.empty() && !options_.events->runs_others();
  if (!request->scattered && may_hold_back) return {};
  if (!request->scattered) stop_holding_back(*request);
  if (request->window == nullptr) options_.events->provide_window(*request);
  return {request->window + position, rest};
}

// Other operations may wait for what is behind this message: it gets a window for all of it.
void Link::stop_holding_back(RecvRequest& request) {
  std::vector<std::byte> waiting(request.arrived - request.consumed);
  const size_t begin = request.consumed % std::max(request.window_bytes, size_t{1});
  const size_t first = std::min(waiting.size(), request.window_bytes - begin);
  if (!waiting.empty()) {
    std::memcpy(waiting.data(), request.window + begin, first);
    std::memcpy(waiting.data() + first, request.window, waiting.size() - first);
  }
  request.scattered = true;
  request.covered.add(0, request.arrived);
  options_.events->provide_window(request);
  if (!waiting.empty()) {
    std::memcpy(request.window + request.consumed, waiting.data(), waiting.size());
  }
}

void Link::payload_arrived(Intake& intake, const FrameHeader& header, size_t done) {
  RecvRequest* request = intake.request;
  if (request == nullptr) return;
  const size_t before = request->arrived;
  if (request->scattered) {
    request->covered.add(header.offset, header.offset + done);
    request->arrived = request->covered.prefix();
  } else {
    request->arrived = header.offset + done;
  }
  // end_frame() reports the end; here only what can be worked on already.
  if (request->destination == nullptr && request->arrived > before &&
      request->arrived < request->bytes) {
    options_.events->on_arrived(*request);
  }
}

Status Link::end_frame(Intake& intake, const FrameHeader& header) {
  // Another lane may have brought the same frame meanwhile.
  if (intake.is_duplicate || has_come(header)) return Status();
  if (header.number != 0) numbers_seen_.add(header.number - 1, header.number);
  switch (header.kind) {
    case FrameKind::data: return end_data(intake, header);
    case FrameKind::offer:
    case FrameKind::request: return announce(intake, header);
    case FrameKind::ack: return complete_offer(header.id);
    case FrameKind::open: return on_open(header);
    case FrameKind::grant: return grant_request(header.id);
    case FrameKind::heartbeat:
    case FrameKind::receipt: return Status();
    case FrameKind::rail_lost: return on_rail_lost(header);
    case FrameKind::share: return on_share(header);
    case FrameKind::shared: return cooperative_copy_.on_shared(header.id, header.offset);
    case FrameKind::credit: return on_credit(header.offset);
    case FrameKind::abort: return on_abort(intake, header);
    case FrameKind::goodbye: return on_goodbye(intake);
    case FrameKind::hello: break;
  }
  return Status(StatusCode::protocol_error, "a second hello");
}

Status Link::end_data(Intake& intake, const FrameHeader& header) {
  peer_has_begun(header.tag);
  RecvRequest* request = std::exchange(intake.request, nullptr);
  if (request == nullptr && header.number != 0) {
    // The receive may have been posted since, and met the same frame on another lane.
    Result<RecvRequest*> met = begun(header);
    if (met.ok() && *met != nullptr && (*met)->scattered) {
      request = *met;
      store(*request, header.offset, intake.buffer);
      request->covered.add(header.offset, header.offset + header.payload_bytes);
      request->arrived = request->covered.prefix();
    }
  }
  if (request == nullptr) {
    early_.add(header, intake.buffer, arrival_order++);
    return deliver_unexpected(header);
  }
  const bool is_last = header.offset + header.payload_bytes == request->bytes;
  if (request->scattered ? request->arrived == request->bytes : is_last) {
    erase_one(granted_, request);
    forget(request);
    request->arrived = request->bytes;
    count_taken(header);
    // Its sender waits to hear of all parts, and of none before.
    if (request->bytes > kEagerBytes) confirm_soon();
    options_.events->on_arrived(*request);
  }
  return Status();
}

// The receive may have been posted while the message was being read.
Status Link::deliver_unexpected(const FrameHeader& header) {
  Result<RecvRequest*> request = match(header);
  if (!request.ok()) return request.status();
  if (*request == nullptr) return Status();
  if (!(*request)->ready) {
    posted_.push_back(*request);
  } else {
    take_unexpected(**request);
  }
  return Status();
}

// The request is complete: another lane that still reads a copy of one of its frames drops that.
void Link::forget(const RecvRequest* request) {
  lanes_.for_each_lane([&](size_t, Lane& lane) {
    if (lane.intake().request != request) return;
    lane.let_go_of_request();
  });
}

Status Link::announce(Intake& intake, const FrameHeader& header) {
  if (header.payload_bytes != 0 && header.payload_bytes != kKeyBytes) {
    return Status(StatusCode::protocol_error, "an offer whose key has a wrong size");
  }
  if (header.kind == FrameKind::offer && memory() == nullptr) {
    return Status(StatusCode::protocol_error, "an offer of memory that cannot be reached");
  }
  peer_has_begun(header.tag);
  Result<RecvRequest*> request = match(header);
  if (!request.ok()) return request.status();
  if (*request != nullptr) {
    accept_announced(**request, {header, std::exchange(intake.buffer, {})});
  } else {
    early_.add(header, intake.buffer, arrival_order++);
  }
  return Status();
}

// The peer's communicator has failed: its reason becomes ours. `id` is the status code.
Status Link::on_abort(const Intake& intake, const FrameHeader& header) {
  reported_ = true;
  const auto* const text = reinterpret_cast<const char*>(intake.buffer.data());
  return received_status(header.id, std::string(text, header.payload_bytes));
}

// Each lane has its own last word: what it brought before has been read.
Status Link::on_goodbye(Intake& intake) {
  intake.said_goodbye = true;
  leave_if_all_said_goodbye();
  return Status();
}

void Link::leave_if_all_said_goodbye() {
  bool all_did = has_lane();
  lanes_.for_each_lane([&](size_t, Lane& lane) { all_did &= lane.intake().said_goodbye; });
  if (!all_did) return;
  state_ = State::left;
  options_.events->on_goodbye(peer());
}

// The peer has given up its end of a lane; perhaps there is a new one since.
Status Link::on_rail_lost(const FrameHeader& header) {
  if (header.id >= lanes_.num_lanes() || !may_lose_lanes()) {
    return Status(StatusCode::protocol_error, str_cat("there is no lane ", header.id, " to lose"));
  }
  if (connections_[header.id] == header.offset) lanes_to_lose_.push_back(header.id);
  return Status();
}

// --- progress and the end ---

bool Link::progress() {
  if (state_ != State::up) return false;
  bool moved = false;
  lanes_.for_each_lane([&](size_t index, Lane& lane) {
    if (state_ == State::up) moved |= progress_lane(index, lane);
  });
  if (state_ == State::up) moved |= write_shared();
  if (state_ != State::up) return moved;
  for (size_t index : std::exchange(lanes_to_lose_, {})) lose_lane(index, "the peer gave it up");
  return lanes_.feed() || moved;
}

bool Link::progress_lane(size_t index, Lane& lane) {
  bool moved = false, has_read = false;
  if (!lane.may_progress()) return false;
  Status status = lane.flush(&moved);
  if (lane.maybe_readable()) {
    // The peer's last frames (its reason to abort, goodbye) are read even if writing has failed.
    Status read_status = lane.read(kReadBudgetBytes, &has_read);
    moved |= has_read;
    if (!read_status.ok()) status = read_status;
    if (read_status.ok() && has_read && !status.ok()) return true;  // there may be more
  }
  if (status.ok()) moved |= confirm(lane);
  if (status.ok() || state_ != State::up) return moved;
  // Its end is in good order; the other lanes still have to say theirs. A peer that has our goodbye
  // may close without one of its own.
  if (lane.intake().said_goodbye || said_goodbye_) return moved;
  const bool is_lost = !reported_ && (status.code() == StatusCode::peer_lost ||
                                      status.code() == StatusCode::io_error);
  const Status told = is_lost ? lane.channel().told() : Status();
  if (is_lost && told.ok() && may_lose_lanes()) {
    lose_lane(index, status.message());
  } else {
    reported_ |= !told.ok();
    fail(told.ok() ? status : told);
  }
  return true;
}

void Link::confirm_soon() {
  if (state_ != State::up) return;
  lanes_.for_each_lane([this](size_t, Lane& lane) {
    lane.confirm_soon();
    confirm(lane);
  });
}

bool Link::confirm(Lane& lane) {
  if (!lane.should_confirm() || !lane.idle()) return false;
  lane.push(OutFrame(header_of(FrameKind::receipt, 0)));
  return true;
}

void Link::flush_deferred() {
  lanes_.for_each_lane([](size_t, Lane& lane) { lane.flush_deferred(); });
}

void Link::lose_lane(size_t index, const std::string& reason) {
  Lane* lane = lanes_.lane(index);
  if (lane == nullptr || state_ != State::up) return;
  const std::string what = lane->channel().description();
  const size_t num_frames = lanes_.lose(index);
  lost_lanes_.push_back(index);
  OutFrame notice(header_of(FrameKind::rail_lost, 0));
  notice.header.id = index;
  notice.header.offset = connections_[index];
  lanes_.push_ordered(std::move(notice));
  options_.events->on_rail_event(
      peer(), true,
      str_cat(what, " is lost: ", reason, "; ", num_frames, " frames take another way"));
  if (state_ == State::up) leave_if_all_said_goodbye();
}

void Link::lose_stalled_lanes(int64_t now_ns) {
  if (state_ != State::up) return;
  lanes_.for_each_lane([&](size_t index, Lane& lane) {
    const int64_t stalled_ns = lane.stalled_ns(now_ns);
    if (stalled_ns < kAskStallNs) return;
    Lane* const usual = lanes_.usual_beside(index);
    if (usual != nullptr && !usual->channel().flow().some_on_the_way) beat(*usual);
    const bool is_patient = usual != nullptr || lanes_.is_alone(index);
    if (stalled_ns < (is_patient ? kOnlyStallNs : kStallNs)) return;
    lose_lane(index, str_cat("nothing was confirmed for ", stalled_ns / kNsPerMs, " ms"));
  });
}

bool Link::has_outstanding() const {
  return !waiting_.empty() || !offered_.empty() || !requested_.empty() || num_writing_ > 0 ||
         !posted_.empty() || !granted_.empty() || num_taken_offers_ > 0;
}

void Link::heartbeat() {
  if (state_ != State::up) return;
  lanes_.for_each_lane([&](size_t, Lane& lane) {
    if (lane.idle()) beat(lane);
  });
}

bool Link::take_sign_of_life(int64_t silent_ns) {
  if (state_ != State::up) return true;
  std::vector<size_t> silent;
  bool is_alive = false;
  lanes_.for_each_lane([&](size_t index, Lane& lane) {
    const bool is_heard = lane.take_sign_of_life();
    is_alive |= is_heard;
    if (!is_heard) silent.push_back(index);
  });
  if (is_alive) lose_silent_lanes(silent, std::min(silent_ns, kMaxSilenceStepNs));
  return is_alive;
}

// Their kernels confirm bytes, and the peer lives: a host in between is stopped.
void Link::lose_silent_lanes(const std::vector<size_t>& silent, int64_t ns) {
  if (!may_lose_lanes()) return;
  for (const size_t index : silent) {
    const int64_t silent_ns = lanes_.lane(index)->add_silence(ns);
    if (silent_ns < kSilenceNs) continue;
    lose_lane(index, str_cat("nothing came over it for ", silent_ns / kNsPerMs, " ms"));
  }
}

void Link::send_goodbye() {
  if (state_ != State::up) return;
  said_goodbye_ = true;
  lanes_.push_last(OutFrame(header_of(FrameKind::goodbye, 0)));
  shut_down();
}

void Link::shut_down() {
  lanes_.for_each_lane([](size_t, Lane& lane) { lane.channel().shut_down(); });
}

void Link::fail(const Status& status) {
  if (state_ == State::failed) return;
  DMLCOMM_CHECK(!status.ok());
  const bool was_left = std::exchange(state_, State::failed) == State::left;
  error_ = status;
  // The reason goes to the peer first.
  if (!was_left) options_.events->on_failed(peer(), error_, reported_);
  lanes_.let_go();
}

void Link::end(const Status& reason) {
  if (has_ended()) return;
  DMLCOMM_CHECK(!reason.ok());
  end_reason_ = reason;
  if (CooperativeMemory* words = cooperative()) has_writer_ = !cooperative_copy_.give_up(*words);
  lanes_.drop_queued(reason);
  if (memory() != nullptr) memory()->revoke();
  const bool was_left = std::exchange(state_, State::failed) == State::left;
  if (error_.ok()) error_ = reason;
  if (has_lane() && !was_left) return say_last_words();
  flush_last_words();
}

// On every lane, so that none seems to have died before the reason is read on another.
void Link::say_last_words() {
  OutFrame frame(header_of(FrameKind::abort, 0));
  frame.header.id = static_cast<uint64_t>(end_reason_.code());
  frame.owned = end_reason_.message().substr(0, kMaxReasonBytes);
  frame.header.payload_bytes = static_cast<uint32_t>(frame.owned.size());
  lanes_.push_last(frame);
  is_shut_down_ = false;
  flush_last_words();
}

// If writing fails the peer notices the closed connection.
bool Link::flush_last_words() {
  if (!has_ended() || is_shut_down_) return false;
  bool moved = false;
  lanes_.for_each_lane([&](size_t, Lane& lane) {
    if (!lane.flush(&moved).ok()) lane.drop_all();
  });
  if (!lanes_.idle()) return true;
  // The peer, which waits for our end when it closes, has it now.
  is_shut_down_ = true;
  shut_down();
  return false;
}

bool Link::discard_input() {
  bool open = false;
  std::byte ignored[4096];
  const iovec part{ignored, sizeof(ignored)};
  lanes_.for_each_lane([&](size_t, Lane& lane) {
    Result<size_t> got = lane.channel().read(&part, 1);
    while (got.ok() && *got > 0) got = lane.channel().read(&part, 1);
    open |= got.ok();
  });
  return open;
}

}  // namespace dmlcomm::transport
