#include "transport/lane.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <utility>

#include "base/clock.h"
#include "base/crc32c.h"
#include "base/str_cat.h"
#include "transport/rail_trace.h"

namespace dmlcomm::transport {
namespace {

// A message of at most so many bytes waits for others that are sent at the same time.
constexpr size_t kMaxDeferredPayload = 4096;
// The time of shorter frames tells little of a rail's rate: of small messages that wait for a
// receipt.
constexpr size_t kLeastSampledBytes = 4 * 1024;
// Frames are written together up to so many bytes and parts.
constexpr size_t kBatchBytes = 64 * 1024;
constexpr int kMaxParts = 32;
constexpr int kMaxPartsOfFrame = 3;
// A read takes along so many bytes: several small frames, and little to copy of large ones.
constexpr size_t kAheadBytes = 8192;
// So many bytes of a payload are taken into its checksum at a time: while they are in the cache,
// the kernel copies them, or has just done so.
constexpr size_t kCheckedBytes = 128 * 1024;
// A peer that waits for nothing hears at last after so many frames or bytes what has been read: a
// receipt wakes it, and it keeps a copy of these.
constexpr uint64_t kMaxUntoldFrames = 64;
constexpr size_t kMaxUntoldBytes = 256 * 1024;
// A look at the kernel's queue of a lane holds for so long.
constexpr int64_t kProspectNs = 1 * kNsPerMs;
// A small message that so many have passed keeps its place.
constexpr uint32_t kMostPassed = 64;
// The credit: so many bytes wait for no longer than this. Half of it is the part that a lane has
// begun, and half the kernel's queue.
constexpr double kCreditS = 2e-3;
constexpr size_t kMinCreditBytes = 32 * 1024;
// Another one is worth a system call if it differs by so much.
constexpr double kOtherCredit = 1.25;
// What the kernel takes of large messages that wait for credit: as much as a rail carries while the
// sender hears that there is room again.
constexpr double kArrivalsS = 4e-3;
constexpr size_t kLeastArrivalBytes = 256 * 1024;
// The rate of a lane that has carried nothing for so long is not known any more.
constexpr int64_t kProspectAgeNs = 1 * kNsPerS;
// A lane whose channel takes nothing for so long does not keep its rail busy.
constexpr int64_t kBusyNs = 20 * kNsPerMs;

size_t bytes_left(const OutFrame& frame) {
  const size_t trailer_bytes = frame.has_trailer ? kTrailerBytes : 0;
  return kHeaderBytes + frame.header.payload_bytes + trailer_bytes - frame.written;
}

// Frames are moved while they wait, and a short string with them.
const std::byte* payload_of(const OutFrame& frame) {
  return frame.owned.empty() ? frame.payload
                             : reinterpret_cast<const std::byte*>(frame.owned.data());
}

// Of a frame with a trailer, the part of the payload that may leave: what the checksum contains.
size_t payload_ready(const OutFrame& frame) {
  return frame.has_trailer ? frame.num_checked : frame.header.payload_bytes;
}

// Takes the next slice into the checksum, so that it is in the cache when the channel copies it.
void check_next(OutFrame& frame) {
  const size_t written = frame.written - std::min(frame.written, kHeaderBytes);
  const size_t end = std::min<size_t>(written + kCheckedBytes, frame.header.payload_bytes);
  if (end <= frame.num_checked) return;
  frame.checksum =
      crc32c(frame.checksum, payload_of(frame) + frame.num_checked, end - frame.num_checked);
  frame.num_checked = end;
}

// The bytes of the frame that are not written yet, and may leave, in one to three parts; their
// number is added to `total`.
int add_parts(OutFrame& frame, iovec* parts, size_t* total) {
  int num_parts = 0;
  size_t begin = 0;
  const auto add = [&](const void* data, size_t bytes) {
    const size_t done = std::min(bytes, frame.written - std::min(frame.written, begin));
    begin += bytes;
    if (done == bytes) return;
    auto* const first = const_cast<std::byte*>(static_cast<const std::byte*>(data)) + done;
    parts[num_parts++] = {first, bytes - done};
    *total += bytes - done;
  };
  add(frame.bytes.data(), kHeaderBytes);
  add(payload_of(frame), payload_ready(frame));
  const bool is_checked = payload_ready(frame) == frame.header.payload_bytes;
  if (frame.has_trailer && is_checked) add(&frame.checksum, kTrailerBytes);
  return num_parts;
}

// Messages of one tag between two points meet their receives in the order in which they begin.
bool meets_before(const OutFrame& first, const OutFrame& second) {
  return is_point_to_point(second.header.tag) && first.header.tag == second.header.tag &&
         first.begins_message() && second.begins_message();
}

// Parts of large messages are seen to when they are given to the lane, but for the oldest one's.
bool may_pass(const OutFrame& frame, const OutFrame& waiting) {
  if (waiting.order <= frame.order || waiting.written > 0) return false;
  if (frame.header.ticket == 0) return true;  // control
  if (!waiting.order.is_large) return waiting.num_passed < kMostPassed;
  return !waiting.has_turn || waiting.bytes_passed < kMostPartsBefore * kMaxPartBytes;
}

}  // namespace

Lane::Lane(std::unique_ptr<Channel> channel, uint64_t job_id, bool keeps, RailCounters* counters,
           RailMeter* meter, LaneReader* reader, size_t ticket_class)
    : channel_(std::move(channel)),
      job_id_(job_id),
      keeps_(keeps),
      checks_(channel_->checks_payloads()),
      counters_(counters),
      meter_(meter),
      reader_(reader),
      ticket_class_(ticket_class),
      ahead_(kAheadBytes) {}

void Lane::push(OutFrame frame) {
  const bool waits_already = !out_.empty() && !deferred_;
  const bool is_small =
      frame.header.kind == FrameKind::data && frame.header.payload_bytes <= kMaxDeferredPayload;
  deferred_ = !waits_already && is_small && queued_bytes_ < kBatchBytes;
  num_large_ += frame.order.is_large ? 1 : 0;
  queued_bytes_ += frame.header.payload_bytes;
  // Its rail's budget may let it wait for longer than small ones should.
  if (frame.has_turn && meter_ != nullptr && meter_->limits_large()) frame.has_turn = false;
  // Behind those of the same order, and never before one that is partly written.
  auto place = out_.end();
  while (place != out_.begin() && may_pass(frame, *std::prev(place))) {
    --place;
    if (!meets_before(*place, frame)) continue;
    frame.order = place->order;
    place = out_.end();
  }
  // It may go before a large one that waits for its budget.
  const bool is_next = place == out_.begin();
  std::for_each(place, out_.end(), [&frame](OutFrame& passed) {
    ++passed.num_passed;
    passed.bytes_passed += frame.header.payload_bytes;
  });
  out_.insert(place, std::move(frame));
  if ((!waits_already || is_next) && !deferred_) write_at_once();
}

void Lane::flush_deferred() {
  if (deferred_) write_at_once();
}

void Lane::write_at_once() {
  bool moved = false;
  if (write_error_.ok()) write_error_ = flush(&moved);
}

Status Lane::flush(bool* moved) {
  DMLCOMM_RETURN_IF_ERROR(write_error_);
  deferred_ = false;
  bool wrote = false;
  while (!out_.empty() && channel_->maybe_writable()) {
    Result<bool> complete = write_batch(&wrote);
    if (!complete.ok()) return complete.status();
    if (!*complete) break;
  }
  if (wrote) channel_->notify();
  *moved |= wrote;
  return Status();
}

// Large frames leave room for small ones and for other jobs, where the rail has limits.
bool Lane::may_leave(OutFrame& frame) {
  if (!frame.order.is_large || meter_ == nullptr || !meter_->limits_large()) return true;
  if (frame.has_budget || frame.written > 0) return true;
  return frame.has_budget = meter_->take_large(frame.header.payload_bytes, now_ns());
}

// Writes some of the first frames with one call; whether the channel has taken all of these bytes.
Result<bool> Lane::write_batch(bool* wrote_any) {
  iovec parts[kMaxParts];
  int num_parts = 0;
  size_t total = 0;
  uint16_t ticket = 0;  // that the frames of this batch have, if they have any
  bool has_message = false;
  for (OutFrame& frame : out_) {
    if (num_parts + kMaxPartsOfFrame > kMaxParts || total >= kBatchBytes || !may_leave(frame))
      break;
    if (frame.header.ticket != 0 && channel_->shows_tickets()) {
      if (ticket != 0 && frame.header.ticket != ticket) break;
      ticket = frame.header.ticket;
    }
    has_message |= frame.header.ticket != 0;
    if (frame.written == 0) {
      frame.header.received = num_told_ = num_read_;
      untold_bytes_ = 0;
      receipt_awaited_ = false;
      encode_header(frame.header, frame.bytes);
      frame.has_trailer = checks_ && frame.header.payload_bytes > 0;
    }
    if (frame.has_trailer) check_next(frame);
    num_parts += add_parts(frame, parts + num_parts, &total);
    if (payload_ready(frame) < frame.header.payload_bytes) break;
  }
  if (num_parts == 0) return false;
  if (ticket != 0) channel_->set_ticket(static_cast<uint8_t>(ticket - 1));
  const uint64_t lent_before = channel_->bytes_lent();
  Result<size_t> wrote = channel_->write(parts, num_parts);
  if (!wrote.ok()) return wrote.status();
  counters_->bytes_lent += channel_->bytes_lent() - lent_before;
  *wrote_any |= *wrote > 0;
  if (*wrote > 0 && keeps_) taken_ns_ = now_ns();
  if (*wrote > 0 && has_message) note_urgent();
  given_bytes_ += *wrote;
  bytes_since_prospect_ += *wrote;
  counters_->bytes_sent += *wrote;
  if (meter_ != nullptr) meter_->credit().count(*wrote);
  size_t left = *wrote;
  for (auto frame = out_.begin(); left > 0; ++frame) {
    const size_t bytes = std::min(left, bytes_left(*frame));
    if (frame->written == 0) {
      begin_metered(*frame);
      note_wait(*frame);
    }
    const size_t headers = kHeaderBytes - std::min(frame->written, kHeaderBytes);
    const size_t payload = bytes - std::min(bytes, headers);
    given_payload_bytes_ += payload;
    trace(true, frame->header, frame->written <= kHeaderBytes, payload);
    frame->written += bytes;
    left -= bytes;
  }
  // After the bytes of all frames are noted: frame_written() calls the reader.
  while (!out_.empty() && bytes_left(out_.front()) == 0) frame_written();
  return *wrote == total;
}

void Lane::frame_written() {
  OutFrame& frame = out_.front();
  queued_bytes_ -= frame.header.payload_bytes;
  num_large_ -= frame.order.is_large ? 1 : 0;
  SendRequest* completes = frame.completes;
  const bool is_kept = keeps_ && frame.header.number != 0;
  if (is_kept) kept_.push_back(std::move(frame));
  out_.pop_front();
  if (!is_kept && completes != nullptr) reader_->request_written(*completes);
}

// The peer has read `num_frames` numbered frames of this lane in all.
Status Lane::confirm(uint64_t num_frames) {
  while (num_confirmed_ < num_frames) {
    if (kept_.empty()) {
      return Status(StatusCode::protocol_error,
                    str_cat("receipt of ", num_frames, " frames, ", num_confirmed_, " were sent"));
    }
    SendRequest* completes = kept_.front().completes;
    end_metered(kept_.front());
    if (const OutFrame& frame = kept_.front(); meter_ != nullptr && frame.sampled_ns > 0) {
      meter_->add_sample(frame.header.payload_bytes, now_ns() - frame.sampled_ns);
    }
    kept_.pop_front();
    ++num_confirmed_;
    if (completes != nullptr) reader_->request_written(*completes);
  }
  return Status();
}

bool Lane::is_metered(const OutFrame& frame) const {
  return meter_ != nullptr && keeps_ && frame.header.number != 0 &&
         (frame.order.is_large || frame.tells_rate) &&
         frame.header.payload_bytes >= RailMeter::kLeastFrameBytes;
}

bool Lane::is_sample(const OutFrame& frame) const {
  return meter_ != nullptr && keeps_ && frame.header.number != 0 && !frame.order.is_large &&
         !frame.tells_rate && frame.header.awaits_receipt != 0 &&
         frame.header.payload_bytes >= kLeastSampledBytes;
}

void Lane::begin_metered(OutFrame& frame) {
  if (is_metered(frame)) meter_->begin_frame(now_ns(), frame.header.payload_bytes);
  if (is_sample(frame)) frame.sampled_ns = now_ns();
}

void Lane::note_wait(OutFrame& frame) {
  if (frame.waits_since_ns == 0) return;
  counters_->urgent_waits.note(now_ns() - std::exchange(frame.waits_since_ns, 0));
}

void Lane::end_metered(const OutFrame& frame) {
  if (frame.written > 0 && is_metered(frame)) {
    meter_->end_frame(now_ns(), frame.header.payload_bytes);
  }
}

bool Lane::take_sign_of_life() {
  const bool heard = std::exchange(heard_, false);
  const bool is_alive = channel_->peer_showed_life() || heard || held_back_;
  if (is_alive) silent_ns_ = 0;
  return is_alive;
}

Lane::Prospect Lane::prospect(int64_t now_ns) {
  if (now_ns - prospect_ns_ > kProspectNs) {
    const Channel::Flow flow = channel_->flow();
    if (bytes_since_prospect_ > kMaxDeferredPayload) carried_ns_ = now_ns;
    const bool is_idle = now_ns - carried_ns_ > kProspectAgeNs;
    const double rate = is_idle ? 0 : flow.bytes_per_second;
    prospect_ = {static_cast<double>(flow.queued_bytes), rate, is_idle};
    prospect_ns_ = now_ns;
    bytes_since_prospect_ = 0;
  }
  const auto added = static_cast<double>(bytes_since_prospect_ + queued_bytes_);
  return {prospect_.queued_bytes + added, prospect_.bytes_per_second, prospect_.is_idle};
}

bool Lane::is_busy(int64_t now_ns) const {
  return !out_.empty() && !deferred_ && now_ns - taken_ns_ < kBusyNs;
}

void Lane::limit_credit(size_t bytes) {
  adapts_credit_ = bytes == 0;
  credit_ = adapts_credit_ ? kMinCreditBytes : bytes;
  channel_->limit_queue(credit_);
}

size_t Lane::credit(int64_t now_ns) {
  was_large_ = true;
  if (!adapts_credit_ || now_ns - credit_ns_ < kProspectNs) return credit_;
  credit_ns_ = now_ns;
  // A connection that had too little to send does not know its rate, but the rail does.
  const double own = prospect(now_ns).bytes_per_second;
  const double rate = own > 0 || meter_ == nullptr ? own : meter_->bits_per_second() / 8;
  const auto now = static_cast<double>(credit_);
  const double wanted =
      std::clamp<double>(rate > 0 ? kCreditS * rate : 2 * now, kMinCreditBytes, kMaxPayloadBytes);
  if (wanted < kOtherCredit * now && now < kOtherCredit * wanted) return credit_;
  credit_ = static_cast<size_t>(wanted);
  channel_->limit_queue(credit_);
  return credit_;
}

uint64_t Lane::blocking_bytes() const {
  if (!was_large_) return 0;
  return kHeaderBytes + std::max(credit_, kBatchBytes) + channel_->flow().most_queued_bytes;
}

void Lane::measure() {
  if (given_bytes_ == 0 || meter_ == nullptr) return;
  const Channel::Flow flow = channel_->flow();
  meter_->add(measured_, flow, std::exchange(given_payload_bytes_, 0));
  given_bytes_ = 0;
  measured_ = flow;
}

std::deque<OutFrame> Lane::take_back() {
  end_all_metered();
  std::deque<OutFrame> frames = std::move(kept_);
  for (OutFrame& frame : out_) {
    if (frame.header.number != 0) frames.push_back(std::move(frame));
  }
  out_.clear();
  for (OutFrame& frame : frames) frame.written = 0;
  return frames;
}

void Lane::end_all_metered() {
  for (const OutFrame& frame : kept_) end_metered(frame);
  if (!out_.empty()) end_metered(out_.front());
  meter_ = nullptr;
}

void Lane::let_go_of_request() {
  channel_->let_go();
  intake_.request = nullptr;
  intake_.is_duplicate = true;
  intake_.buffer.resize(kMaxPayloadBytes);
}

void Lane::drop_queued() {
  channel_->let_go();
  end_all_metered();
  kept_.clear();
  while (out_.size() > 1) out_.pop_back();
  if (out_.empty()) return;
  OutFrame& frame = out_.front();
  if (frame.written == 0) return out_.clear();
  frame.completes = nullptr;
  if (frame.owned.empty() && frame.payload != nullptr) {
    frame.owned.assign(reinterpret_cast<const char*>(frame.payload), frame.header.payload_bytes);
  }
}

void Lane::drop_all() {
  channel_->let_go();
  end_all_metered();
  out_.clear();
  kept_.clear();
}

Status Lane::read(size_t max_bytes, bool* moved) {
  size_t total = 0;
  while (total < max_bytes) {
    if (!in_frame_) {
      const size_t before = in_header_done_;
      Result<bool> complete = read_header();
      if (!complete.ok()) return complete.status();
      *moved |= *complete || in_header_done_ != before;
      if (!*complete) return Status();
      in_frame_ = true;
      in_done_ = 0;
      in_checksum_ = 0;
      DMLCOMM_RETURN_IF_ERROR(reader_->begin_frame(intake_, in_));
    }
    if (in_done_ < in_.payload_bytes) {
      Result<size_t> got = read_payload();
      if (!got.ok()) return got.status();
      if (*got == 0) return Status();
      total += *got;
      *moved = true;
    }
    if (in_done_ == in_.payload_bytes) {
      if (checks_ && in_.payload_bytes > 0) {
        Result<bool> is_intact = read_trailer();
        if (!is_intact.ok()) return is_intact.status();
        if (!*is_intact) return Status();
      }
      in_frame_ = false;
      if (in_.number != 0) note_read();
      if (in_.ticket != 0) note_urgent();
      DMLCOMM_RETURN_IF_ERROR(reader_->end_frame(intake_, in_));
    }
  }
  return Status();
}

void Lane::note_urgent() {
  if (ticket_class_ > 0 && meter_ != nullptr) meter_->note_urgent(ticket_class_, now_ns());
}

void Lane::trace(bool is_sent, const FrameHeader& header, bool is_first, size_t bytes) {
  RailTrace& rails = RailTrace::instance();
  if (rails.is_on()) [[unlikely]] {
    rails.note(counters_->interface, this, is_sent, header, is_first, bytes);
  }
}

void Lane::note_read() {
  ++num_read_;
  untold_bytes_ += in_.payload_bytes;
  // A sender that repeats a frame has not got its receipt.
  receipt_awaited_ |= in_.awaits_receipt != 0 || intake_.is_duplicate;
}

bool Lane::should_confirm() const {
  return owes_receipt() && (receipt_awaited_ || num_read_ - num_told_ >= kMaxUntoldFrames ||
                            untold_bytes_ >= kMaxUntoldBytes);
}

Result<bool> Lane::read_header() {
  Result<size_t> got = take(in_bytes_.data() + in_header_done_, kHeaderBytes - in_header_done_);
  if (!got.ok()) return got.status();
  in_header_done_ += *got;
  if (in_header_done_ < kHeaderBytes) return false;
  Result<FrameHeader> header = decode_header(in_bytes_, job_id_);
  if (!header.ok()) return header.status();
  in_ = *header;
  in_header_done_ = 0;
  if (keeps_) DMLCOMM_RETURN_IF_ERROR(confirm(in_.received));
  return true;
}

Result<size_t> Lane::read_payload() {
  const Sink sink = reader_->room_for_payload(intake_, in_, in_done_);
  held_back_ = sink.bytes == 0;
  if (held_back_) return size_t{0};
  size_t room = checks_ ? std::min(sink.bytes, kCheckedBytes) : sink.bytes;
  const bool is_large = in_.message_bytes > kEagerBytes && meter_ != nullptr;
  if (is_large) room = may_read(room);
  held_back_ = room == 0;
  if (held_back_) return size_t{0};
  // What lies behind is for the next sink.
  const bool is_last = in_done_ + room == in_.payload_bytes;
  const bool in_place = sink.stays && !checks_ && ahead_bytes_ == 0 && channel_->reads_in_place();
  Result<size_t> got = in_place ? take_in_place(sink, room)
                                : take(sink.data, room, is_last ? Ahead::yes : Ahead::no);
  if (!got.ok() || *got == 0) return got;
  trace(false, in_, in_done_ == 0, *got);
  in_done_ += *got;
  if (is_large) meter_->arrivals().take(*got);
  if (checks_) in_checksum_ = crc32c(in_checksum_, sink.data, *got);
  // The last bytes count once the checksum is there, so no message ends before.
  const bool awaits_trailer = checks_ && in_done_ == in_.payload_bytes;
  if (!awaits_trailer) reader_->payload_arrived(intake_, in_, in_done_);
  return got;
}

// Another job of this host goes first. The kernel is to take little of what is not read, so that
// the sender waits.
size_t Lane::may_read(size_t most) {
  const size_t bytes = meter_->may_read(most);
  if (bytes == 0 && !limits_arrivals_) {
    limits_arrivals_ = true;
    const double in_flight = kArrivalsS * meter_->bits_per_second() / 8;
    channel_->limit_arrivals(std::max(kLeastArrivalBytes, static_cast<size_t>(in_flight)));
  }
  return bytes;
}

// False: not all of it has come. Damaged bytes are in the tensor, or perhaps in a sum already. So
// nothing can be repaired, and the group fails.
Result<bool> Lane::read_trailer() {
  Result<size_t> got =
      take(in_trailer_.data() + in_trailer_done_, kTrailerBytes - in_trailer_done_);
  if (!got.ok()) return got.status();
  in_trailer_done_ += *got;
  if (in_trailer_done_ < kTrailerBytes) return false;
  in_trailer_done_ = 0;
  uint32_t expected;
  std::memcpy(&expected, in_trailer_.data(), kTrailerBytes);
  if (expected != in_checksum_) {
    return Status(StatusCode::protocol_error, to_string(in_.kind), " frame of ", in_.payload_bytes,
                  " bytes, at ", in_.offset, " of a message of ", in_.message_bytes,
                  ", came damaged by ", channel_->description(), ": its CRC-32C is ", in_checksum_,
                  ", the sender's ", expected, "; memory, a NIC or a switch of these hosts is bad");
  }
  reader_->payload_arrived(intake_, in_, in_done_);
  return true;
}

// The next bytes of the channel, at most so many; some behind them are kept for the next call.
Result<size_t> Lane::take(std::byte* to, size_t bytes, Ahead ahead) {
  if (ahead_bytes_ > 0) {
    const size_t taken = std::min(bytes, ahead_bytes_);
    std::memcpy(to, ahead_.data() + ahead_begin_, taken);
    ahead_begin_ += taken;
    ahead_bytes_ -= taken;
    return taken;
  }
  const iovec parts[] = {{to, bytes}, {ahead_.data(), ahead_.size()}};
  Result<size_t> got = channel_->read(parts, ahead == Ahead::yes ? 2 : 1);
  if (!got.ok()) return got;
  count_taken(*got);
  const size_t taken = std::min(bytes, *got);
  ahead_begin_ = 0;
  ahead_bytes_ = *got - taken;
  return taken;
}

Result<size_t> Lane::take_in_place(const Sink& sink, size_t bytes) {
  Result<size_t> got = channel_->read_in_place(sink.data, bytes);
  if (got.ok()) count_taken(*got);
  return got;
}

void Lane::count_taken(size_t bytes) {
  heard_ |= bytes > 0;
  counters_->bytes_received += bytes;
  if (meter_ != nullptr) meter_->arrivals().count(bytes);
}

}  // namespace dmlcomm::transport
