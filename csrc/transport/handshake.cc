#include "transport/handshake.h"

#include <poll.h>

#include <cstring>
#include <utility>

#include "base/str_cat.h"
#include "transport/socket.h"

namespace dmlcomm::transport {

Handshake::Handshake(Attempt attempt, Transport* transport, int peer, size_t lane, std::string what,
                     Deadline deadline)
    : fd_(std::move(attempt.fd)),
      transport_(transport),
      peer_(peer),
      lane_(lane),
      what_(std::move(what)),
      deadline_(deadline),
      connect_by_(attempt.connect_by),
      answer_by_(attempt.answer_by),
      connecting_(peer >= 0),
      awaits_relays_(!attempt.preamble.empty()),
      out_(std::move(attempt.preamble)) {}

void Handshake::send(const Hello& hello, const JobKey& key, int rank, std::vector<int> fds) {
  FrameHeader header;
  header.kind = FrameKind::hello;
  header.job_id = key.job_id;
  header.source = static_cast<uint32_t>(rank);
  header.payload_bytes = sizeof(Hello);
  HeaderBytes bytes;
  encode_header(header, bytes);
  out_.insert(out_.end(), bytes.begin(), bytes.end());
  const auto* payload = reinterpret_cast<const std::byte*>(&hello);
  out_.insert(out_.end(), payload, payload + sizeof(Hello));
  out_fds_ = std::move(fds);
}

Result<Handshake::Progress> Handshake::advance(const JobKey& key) {
  if (connecting_) {
    pollfd ready{fd_.get(), POLLOUT, 0};
    if (poll(&ready, 1, 0) != 1) return Progress::waiting;
    DMLCOMM_RETURN_IF_ERROR(finish_connecting());
  }
  const Status sent = send_rest();
  if (awaits_relays_) {
    // Also if nothing can be sent any more: the answer may have come before.
    const Result<bool> is_there = receive_answer();
    if (!is_there.ok()) return is_there.status();
    if (!*is_there && !sent.ok()) return Status(StatusCode::io_error, sent.message());
    if (!*is_there) return Progress::waiting;
  }
  DMLCOMM_RETURN_IF_ERROR(sent);
  Result<bool> complete = receive_rest(key);
  if (!complete.ok()) return complete.status();
  return *complete ? Progress::received : Progress::connected;
}

bool Handshake::expired() const {
  return deadline_.expired() || (connecting_ && connect_by_.expired()) ||
         (awaits_relays_ && answer_by_.expired());
}

// A relay that refuses, or resets the connection, is not the peer.
Status Handshake::finish_connecting() {
  const Status status = connect_result(fd_.get(), what_);
  if (!status.ok() && awaits_relays_) return Status(StatusCode::io_error, status.message());
  connecting_ = !status.ok();
  return status;
}

Result<bool> Handshake::receive_answer() {
  while (answer_done_ < answer_.size()) {
    const auto room = std::span(answer_).subspan(answer_done_);
    const Result<size_t> got = recv_some(fd_.get(), room, nullptr);
    if (!got.ok()) return Status(StatusCode::io_error, got.status().message());
    if (*got == 0) return false;
    answer_done_ += *got;
  }
  DMLCOMM_RETURN_IF_ERROR(check_relay_answer(answer_));
  awaits_relays_ = false;
  return true;
}

Status Handshake::send_rest() {
  while (!out_.empty()) {
    Result<size_t> sent = send_some(fd_.get(), out_, out_fds_);
    if (!sent.ok()) return sent.status();
    if (*sent == 0) return Status();
    out_fds_.clear();  // they go with the first byte
    out_.erase(out_.begin(), out_.begin() + static_cast<ptrdiff_t>(*sent));
  }
  return Status();
}

// Reads no byte beyond the hello: what follows belongs to the link.
Result<bool> Handshake::receive_rest(const JobKey& key) {
  while (in_done_ < kFrameBytes) {
    Result<size_t> got = recv_some(
        fd_.get(), std::span(in_.data() + in_done_, kFrameBytes - in_done_), &received_fds_);
    if (!got.ok()) return got.status();
    if (*got == 0) return false;
    in_done_ += *got;
  }
  HeaderBytes header_bytes;
  std::memcpy(header_bytes.data(), in_.data(), kHeaderBytes);
  Result<FrameHeader> header = decode_header(header_bytes, key.job_id);
  if (!header.ok()) return header.status();
  if (header->kind != FrameKind::hello || header->payload_bytes != sizeof(Hello)) {
    return Status(StatusCode::protocol_error, "the first frame is no hello");
  }
  std::memcpy(static_cast<void*>(&received_), in_.data() + kHeaderBytes, sizeof(Hello));
  if (received_.secret != key.secret || received_.rank != header->source) {
    return Status(StatusCode::protocol_error, "the hello does not know this job's secret");
  }
  return true;
}

}  // namespace dmlcomm::transport
