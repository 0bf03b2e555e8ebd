#include "transport/lane.h"

#include <iterator>
#include <utility>

#include "base/str_cat.h"

namespace dmlcomm::transport {

Lane::Lane(std::unique_ptr<Channel> channel, uint64_t job_id, bool keeps, RailCounters* counters,
           LaneReader* reader)
    : channel_(std::move(channel)),
      job_id_(job_id),
      keeps_(keeps),
      counters_(counters),
      reader_(reader) {}

void Lane::push(OutFrame frame) {
  queued_bytes_ += frame.header.payload_bytes;
  // Behind those of the same order, and never before one that is partly written.
  auto place = out_.end();
  while (place != out_.begin() && std::prev(place)->order > frame.order &&
         std::prev(place)->written == 0) {
    --place;
  }
  out_.insert(place, std::move(frame));
  if (out_.size() == 1 && write_error_.ok()) {
    bool moved = false;
    write_error_ = flush(&moved);
  }
}

Status Lane::flush(bool* moved) {
  DMLCOMM_RETURN_IF_ERROR(write_error_);
  bool wrote = false;
  while (!out_.empty()) {
    OutFrame& frame = out_.front();
    const size_t before = frame.written;
    Result<bool> complete = write_frame(frame);
    if (!complete.ok()) return complete.status();
    wrote |= frame.written != before;
    if (!*complete) break;
    frame_written();
  }
  if (wrote) channel_->notify();
  *moved |= wrote;
  return Status();
}

void Lane::frame_written() {
  OutFrame& frame = out_.front();
  queued_bytes_ -= frame.header.payload_bytes;
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
    kept_.pop_front();
    ++num_confirmed_;
    if (completes != nullptr) reader_->request_written(*completes);
  }
  return Status();
}

int64_t Lane::unconfirmed_since(int64_t now_ns) {
  const Channel::Confirmed confirmed = channel_->confirmed();
  if (!confirmed.some_on_the_way) {
    unconfirmed_since_ns_ = INT64_MAX;
  } else if (unconfirmed_since_ns_ == INT64_MAX || confirmed.bytes != confirmed_bytes_) {
    unconfirmed_since_ns_ = now_ns;
  }
  confirmed_bytes_ = confirmed.bytes;
  return unconfirmed_since_ns_;
}

std::deque<OutFrame> Lane::take_back() {
  std::deque<OutFrame> frames = std::move(kept_);
  for (OutFrame& frame : out_) {
    if (frame.header.number != 0) frames.push_back(std::move(frame));
  }
  out_.clear();
  for (OutFrame& frame : frames) frame.written = 0;
  return frames;
}

void Lane::drop_queued() {
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
  out_.clear();
  kept_.clear();
}

Result<bool> Lane::write_frame(OutFrame& frame) {
  const size_t payload_bytes = frame.header.payload_bytes;
  const size_t total = kHeaderBytes + payload_bytes;
  if (frame.written == 0) {
    frame.header.received = num_told_ = num_read_;
    encode_header(frame.header, frame.bytes);
  }
  iovec parts[2];
  int num_parts = 0;
  if (frame.written < kHeaderBytes) {
    parts[num_parts++] = {frame.bytes.data() + frame.written, kHeaderBytes - frame.written};
  }
  // Frames are moved while they wait, and a short string with them.
  const std::byte* payload =
      frame.owned.empty() ? frame.payload : reinterpret_cast<const std::byte*>(frame.owned.data());
  const size_t payload_done = frame.written > kHeaderBytes ? frame.written - kHeaderBytes : 0;
  if (payload_done < payload_bytes) {
    parts[num_parts++] = {const_cast<std::byte*>(payload) + payload_done,
                          payload_bytes - payload_done};
  }
  Result<size_t> wrote = channel_->write(parts, num_parts);
  if (!wrote.ok()) return wrote.status();
  frame.written += *wrote;
  counters_->bytes_sent += *wrote;
  return frame.written == total;
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
      in_frame_ = false;
      if (in_.number != 0) ++num_read_;
      DMLCOMM_RETURN_IF_ERROR(reader_->end_frame(intake_, in_));
    }
  }
  return Status();
}

Result<bool> Lane::read_header() {
  const iovec part{in_bytes_.data() + in_header_done_, kHeaderBytes - in_header_done_};
  Result<size_t> got = channel_->read(&part, 1);
  if (!got.ok()) return got.status();
  heard_ |= *got > 0;
  in_header_done_ += *got;
  counters_->bytes_received += *got;
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
  const iovec part{sink.data, sink.bytes};
  Result<size_t> got = channel_->read(&part, 1);
  if (!got.ok() || *got == 0) return got;
  heard_ = true;
  in_done_ += *got;
  counters_->bytes_received += *got;
  reader_->payload_arrived(intake_, in_, in_done_);
  return got;
}

}  // namespace dmlcomm::transport
