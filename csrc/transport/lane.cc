#include "transport/lane.h"

#include <utility>
#include <vector>

#include "base/check.h"

namespace dmlcomm::transport {

Lane::Lane(std::unique_ptr<Channel> channel, uint64_t job_id, LaneReader* reader)
    : channel_(std::move(channel)), job_id_(job_id), reader_(reader) {}

void Lane::push(const FrameHeader& header, const std::byte* payload, SendRequest* completes) {
  OutFrame& frame = out_.emplace_back();
  encode_header(header, frame.header);
  frame.payload = payload;
  frame.payload_bytes = header.payload_bytes;
  frame.completes = completes;
  if (out_.size() == 1 && write_error_.ok()) {
    bool moved = false;
    write_error_ = flush(&moved);
  }
}

void Lane::push_owned(const FrameHeader& header, std::string payload) {
  DMLCOMM_CHECK(payload.size() == header.payload_bytes);
  OutFrame& frame = out_.emplace_back();
  encode_header(header, frame.header);
  frame.owned = std::move(payload);
  frame.payload = reinterpret_cast<const std::byte*>(frame.owned.data());
  frame.payload_bytes = header.payload_bytes;
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
    SendRequest* completes = frame.completes;
    out_.pop_front();
    if (completes != nullptr) reader_->request_written(*completes);
  }
  if (wrote) channel_->notify();
  *moved |= wrote;
  return Status();
}

void Lane::drop_queued() {
  static const std::vector<std::byte> zeros(kMaxPayloadBytes);
  while (out_.size() > 1) out_.pop_back();
  if (out_.empty()) return;
  OutFrame& frame = out_.front();
  frame.completes = nullptr;
  if (frame.written == 0) {
    out_.clear();
  } else if (frame.owned.empty()) {
    frame.payload = zeros.data();
  }
}

Result<bool> Lane::write_frame(OutFrame& frame) {
  const size_t total = kHeaderBytes + frame.payload_bytes;
  iovec parts[2];
  int num_parts = 0;
  if (frame.written < kHeaderBytes) {
    parts[num_parts++] = {frame.header.data() + frame.written, kHeaderBytes - frame.written};
  }
  const size_t payload_done = frame.written > kHeaderBytes ? frame.written - kHeaderBytes : 0;
  if (payload_done < frame.payload_bytes) {
    parts[num_parts++] = {const_cast<std::byte*>(frame.payload) + payload_done,
                          frame.payload_bytes - payload_done};
  }
  Result<size_t> wrote = channel_->write(parts, num_parts);
  if (!wrote.ok()) return wrote.status();
  frame.written += *wrote;
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
      DMLCOMM_RETURN_IF_ERROR(reader_->begin_frame(in_));
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
      DMLCOMM_RETURN_IF_ERROR(reader_->end_frame(in_));
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
  if (in_header_done_ < kHeaderBytes) return false;
  Result<FrameHeader> header = decode_header(in_bytes_, job_id_);
  if (!header.ok()) return header.status();
  in_ = *header;
  in_header_done_ = 0;
  return true;
}

Result<size_t> Lane::read_payload() {
  const Sink sink = reader_->room_for_payload(in_, in_done_);
  held_back_ = sink.bytes == 0;
  if (held_back_) return size_t{0};
  const iovec part{sink.data, sink.bytes};
  Result<size_t> got = channel_->read(&part, 1);
  if (!got.ok() || *got == 0) return got;
  heard_ = true;
  in_done_ += *got;
  reader_->payload_arrived(in_, in_done_);
  return got;
}

}  // namespace dmlcomm::transport
