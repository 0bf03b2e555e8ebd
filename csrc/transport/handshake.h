// Handshake: one connection before it is trusted. It blocks nothing, and ends by a deadline.
//
//   connecting side                              accepting side
//   request    a challenge, a proof       ->
//                                         <-     challenge  a challenge, a proof
//   confirm    a proof, descriptors       ->
//                                         <-     welcome or yield, a proof, descriptors
//
// Each is a hello frame. A proof is the HMAC, by the job's secret, of all hellos so far with this
// one. So the secret itself never travels, a proof is of no use on another connection, and nobody
// gets descriptors (of shared memory, on Unix sockets) before having answered a challenge.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/unique_fd.h"
#include "transport/address.h"
#include "transport/frame.h"
#include "transport/relay_preamble.h"

namespace dmlcomm::transport {

class Transport;

// A connection that has been begun.
struct Attempt {
  UniqueFd fd;
  // For relays on the way (relay_preamble.h), before the hello; their answer comes before the
  // peer's hello. Empty: there are none.
  std::vector<std::byte> preamble;
  // Beside the handshake's own deadline: of the connection, and of the answer of relays.
  Deadline connect_by;
  Deadline answer_by;
};

class Handshake {
 public:
  enum class Progress { waiting, connected, received };

  // An outgoing connection to `peer` for `lane`, or (`peer` = -1) one that was accepted.
  Handshake(Attempt attempt, Transport* transport, int peer, size_t lane, std::string what,
            Deadline deadline);

  // What this side says of itself, before the first advance(). The descriptors stay the caller's;
  // a connecting side sends them with its confirmation.
  void begin(const Hello& own, const JobKey& key, std::vector<int> fds);
  // Of the accepting side, once the peer has confirmed: queues the welcome, or the yield.
  void answer(const Hello& hello, const JobKey& key, std::vector<int> fds);

  // Moves what can be moved. `received` once the peer has confirmed, or given its answer.
  Result<Progress> advance(const JobKey& key);

  bool outgoing() const { return peer_ >= 0; }
  // Whether the peer has said something that only this job's ranks could have said, now or before.
  bool has_heard_rank() const { return transcript_.size() > (outgoing() ? sizeof(Hello) : 0); }
  Transport* transport() const { return transport_; }
  // Errors of advance() before that are about making the connection; `peer_lost` is one that was
  // refused where the peer should be.
  bool connected() const { return !connecting_ && !awaits_relays_; }
  int peer() const { return peer_; }
  size_t lane() const { return lane_; }
  int fd() const { return fd_.get(); }
  const std::string& what() const { return what_; }
  bool expired() const;
  const Hello& received() const { return received_; }
  UniqueFd take_fd() { return std::move(fd_); }
  std::vector<UniqueFd> take_received_fds() { return std::move(received_fds_); }

 private:
  static constexpr size_t kFrameBytes = kHeaderBytes + sizeof(Hello);

  Status finish_connecting();
  Status send_rest();
  Result<bool> receive_answer();
  Result<bool> receive_rest(const JobKey& key);
  Status take_hello(const JobKey& key);
  void send(Hello hello, const JobKey& key);
  Digest prove(const Hello& hello, const JobKey& key);

  UniqueFd fd_;
  Transport* const transport_;
  const int peer_;
  const size_t lane_;
  const std::string what_;
  const Deadline deadline_;
  const Deadline connect_by_;
  const Deadline answer_by_;

  bool connecting_;
  bool awaits_relays_;
  RelayAnswerBytes answer_{};
  size_t answer_done_ = 0;
  std::vector<std::byte> out_;
  std::vector<int> out_fds_;
  Hello own_;
  std::vector<int> own_fds_;
  std::vector<std::byte> transcript_;  // the hellos of both sides, in their order
  std::array<std::byte, kFrameBytes> in_{};
  size_t in_done_ = 0;
  bool has_all_ = false;  // what follows belongs to the link
  Hello received_;
  std::vector<UniqueFd> received_fds_;
};

}  // namespace dmlcomm::transport
