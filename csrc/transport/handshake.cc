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

void Handshake::begin(const Hello& own, const JobKey& key, std::vector<int> fds) {
  own_ = own;
  own_fds_ = std::move(fds);
  if (!outgoing()) return;
  own_.kind = kHelloRequest;
  send(own_, key);
}

void Handshake::answer(const Hello& hello, const JobKey& key, std::vector<int> fds) {
  send(hello, key);
  out_fds_ = std::move(fds);
}

void Handshake::send(Hello hello, const JobKey& key) {
  hello.challenge = own_.challenge;
  hello.proof = prove(hello, key);
  FrameHeader header;
  header.kind = FrameKind::hello;
  header.job_id = key.job_id;
  header.source = hello.rank;
  header.payload_bytes = sizeof(Hello);
  HeaderBytes bytes;
  encode_header(header, bytes);
  out_.insert(out_.end(), bytes.begin(), bytes.end());
  const auto* payload = reinterpret_cast<const std::byte*>(&hello);
  out_.insert(out_.end(), payload, payload + sizeof(Hello));
}

// Of the hellos before and this one, without its proof. It joins them.
Digest Handshake::prove(const Hello& hello, const JobKey& key) {
  Hello unproven = hello;
  unproven.proof = {};
  const auto* bytes = reinterpret_cast<const std::byte*>(&unproven);
  transcript_.insert(transcript_.end(), bytes, bytes + sizeof(Hello));
  return hmac_sha256(key.secret, transcript_);
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
  while (!has_all_) {
    const Result<bool> complete = receive_rest(key);
    if (!complete.ok()) return complete.status();
    if (!*complete) return Progress::connected;
    DMLCOMM_RETURN_IF_ERROR(take_hello(key));
    has_all_ = received_.kind != kHelloRequest && received_.kind != kHelloChallenge;
    in_done_ = 0;
    DMLCOMM_RETURN_IF_ERROR(send_rest());
  }
  return Progress::received;
}

// Each of the four has its place, and only the next one is taken: request, challenge, confirm, end.
Status Handshake::take_hello(const JobKey& key) {
  const uint8_t first = outgoing() ? kHelloChallenge : kHelloRequest;
  const bool is_first = transcript_.size() == (outgoing() ? sizeof(Hello) : 0);
  const bool is_second = outgoing()
                             ? received_.kind == kHelloWelcome || received_.kind == kHelloYield
                             : received_.kind == kHelloConfirm;
  if (is_first ? received_.kind != first : !is_second) {
    return Status(StatusCode::protocol_error, "a hello that is not the next one");
  }
  if (!same_digest(prove(received_, key), received_.proof)) {
    return Status(StatusCode::protocol_error, "the hello does not know this job's secret");
  }
  if (!is_first) return Status();
  own_.kind = outgoing() ? kHelloConfirm : kHelloChallenge;
  send(own_, key);
  if (outgoing()) out_fds_ = std::move(own_fds_);
  return Status();
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

// Reads no byte beyond the hello.
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
  if (received_.rank != header->source) {
    return Status(StatusCode::protocol_error, "the hello names two ranks");
  }
  return true;
}

}  // namespace dmlcomm::transport
