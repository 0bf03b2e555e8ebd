// UcxChannel: a channel over UCX. Bytes are copied into messages of at most kSlotBytes, which UCX
// carries as it chooses: by rendezvous into a slot of the peer, or, as over its TCP, through memory
// of its own. They may arrive in any order, and are read in that of their numbers. The reader tells
// how many it has read; so many bytes at most are with UCX or unread.
//
// Where there is remote memory (ucx_rail.h) large parts are lent instead, and the reader fetches
// them to their place if they have one that stays, or into a slot.
//
// The socket of the handshake stays open. Its end tells that the peer's process is gone. The first
// byte on it says that the peer's channel is there, and whether the peer can fetch what it is lent.
// Later ones mean nothing; but while messages are on their way there is always one, and if the
// other kernel confirms none, the way is dead. Last of all comes the reason of a peer that has
// failed, which UCX may lose.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <vector>

#include "base/unique_fd.h"
#include "transport/channel.h"
#include "transport/ucx/ucx_rail.h"

namespace dmlcomm::transport::ucx {

class UcxChannel final : public Channel, private UcxUser {
 public:
  // `key`: known to both ends of this channel alone. `window_bytes`: with UCX or unread, at most.
  // `description` names the peer and the interface.
  UcxChannel(UniqueFd socket, UcxRail& rail, uint64_t key, size_t window_bytes,
             std::string description);
  ~UcxChannel() override;

  // Before anything else: connects to the worker of the peer's rail. `fetches`: whether this
  // process can read what the peer would lend.
  Status connect(const std::string& address, bool fetches);

  Result<size_t> write(const iovec* parts, int num_parts) override;
  Result<size_t> read(const iovec* parts, int num_parts) override;
  bool maybe_readable() const override;
  bool maybe_writable() const override;
  Flow flow() const override;
  int descriptor() const override { return socket_.get(); }
  void descriptor_ready(Ready ready) override;
  bool needs_epoll() const override { return false; }
  bool reads_in_place() const override { return rail_.seeks_remote_memory(); }
  Result<size_t> read_in_place(std::byte* to, size_t bytes) override;
  void let_go() override;
  void tell(const Status& reason) override;
  Status told() override;
  uint64_t bytes_lent() const override { return bytes_lent_; }
  void shut_down() override { shuts_down_ = true; }
  std::string description() const override { return description_; }

 private:
  bool message_began(uint64_t number, const Arrival& arrival) override;
  void message_complete(uint64_t number) override;
  void message_failed(uint64_t number, const std::string& why) override;
  void messages_were_read(uint64_t count) override;
  void message_was_fetched(uint64_t number) override;
  void message_confirmed(uint64_t number) override;
  void failed(const std::string& why) override;
  void settle() override;

  bool has_room() const;
  uint64_t note_sent(size_t bytes);
  void send(Slot* slot);
  size_t copy(const std::byte* from, size_t bytes, Slot** slot);
  size_t lend(const std::byte* from, size_t bytes);
  size_t take_back_loans();
  void fetch(std::byte* to, size_t bytes, bool stays);
  void fetch_one(Arrival* arrival, uint64_t number, std::byte* place);
  Result<size_t> read_arrivals(const iovec* parts, int num_parts);
  bool is_fetching_to_places() const;
  void take_beside(std::string_view bytes);
  bool has_arrived() const { return !arrivals_.empty() && arrivals_.front().is_good(); }
  Arrival* arrival_of(uint64_t number);
  Status lost(const char* what) const;

  const UniqueFd socket_;
  UcxRail& rail_;
  const uint64_t key_;
  const size_t window_bytes_;
  const std::string description_;

  bool peer_is_there_ = false;
  bool peer_is_gone_ = false;
  bool shuts_down_ = false;
  bool has_told_ = false;
  bool lends_ = false;
  std::string error_;   // the first
  std::string reason_;  // that the peer has told, as it comes

  // A message that the peer has not read.
  struct Unread {
    size_t bytes = 0;
    int64_t sent_ns = 0;
    uint64_t read_before = 0;  // read_bytes_ when it was sent
    bool fills_window = false;
  };
  void take_sample(const Unread& read);

  std::deque<Unread> unread_;
  size_t unread_bytes_ = 0;
  uint64_t num_sent_ = 0;
  uint64_t read_bytes_ = 0;  // by the peer
  int64_t busy_since_ns_ = 0;
  int64_t busy_ns_ = 0;
  double bytes_per_second_ = 0;  // of late; 0: not known

  // Bytes that were lent, the first ones that are not taken.
  struct Lent {
    Loan* loan = nullptr;
    size_t bytes = 0;
  };
  std::deque<Lent> lent_;
  size_t lent_bytes_ = 0;
  uint64_t bytes_lent_ = 0;        // and fetched, since the beginning
  std::vector<uint64_t> fetched_;  // of those that we lent; to be confirmed

  std::deque<Arrival> arrivals_;  // from message num_read_ on
  size_t num_offered_ = 0;        // of them
  bool is_offered_ = false;       // one, since the last read()
  size_t front_read_bytes_ = 0;   // of the first of them
  uint64_t num_read_ = 0;
  uint64_t num_told_ = 0;
};

}  // namespace dmlcomm::transport::ucx
