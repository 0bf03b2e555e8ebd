// UcxRail: UCX on one NIC of this rank: a context that may use no other device, and a worker, which
// the endpoints of all peers on that rail share.
//
// Bytes travel in active messages from slots of the rail. A slot belongs to UCX until its request
// ends, which may be after the end of the channel that used it. A message carries a key, by which
// the rail finds its channel, and a number.
//
// Where an endpoint has remote memory (RDMA; CMA inside a host) a message may be lent: its receiver
// fetches the bytes from where the sender has them, by itself and at any time. So they are good
// only once the sender has confirmed that it still held them when they had been fetched. No peer
// writes to memory here: UCX is told that receivers fetch (get_zcopy).
//
// All calls require the progress lock. Channels end before their rail.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/config.h"
#include "base/status.h"
#include "transport/ucx/ucx_api.h"

namespace dmlcomm::transport::ucx {

// A part of a message that large takes one of these.
constexpr size_t kSlotBytes = 256 * 1024;

// The interface for peers of the same host.
constexpr char kLoopback[] = "lo";

class UcxRail;

// On the wire, in the order of bytes of the host.
struct MessageHeader {
  uint64_t key = 0;
  uint64_t number = 0;  // of a data message, from 0 on; to read_counts: how many have been read
};

// Ids of active messages.
enum class MessageKind : unsigned { data, read_count, lent, confirmation };

struct Slot {
  UcxRail* rail = nullptr;
  MessageKind kind = MessageKind::data;
  MessageHeader header;
  size_t bytes = 0;
  // Not cleared: it is written before it is read.
  std::unique_ptr<std::byte[]> memory{new std::byte[kSlotBytes]};
};

// Memory of a channel's caller that UCX reads from or writes to until it is done.
struct Loan {
  UcxRail* rail = nullptr;
  MessageHeader header;
  bool is_done = false;
  bool has_failed = false;
  bool has_owner = true;
};

// A message that has come, or is on its way: into a slot, in memory of UCX, or to where the reader
// wants it.
struct Arrival {
  const std::byte* data = nullptr;
  size_t bytes = 0;  // 0: nothing of it has come
  Slot* slot = nullptr;
  void* kept = nullptr;
  void* offered = nullptr;  // lent, and not fetched yet
  Loan* loan = nullptr;     // it is fetched to its place
  bool is_complete = false;
  bool is_lent = false;
  bool is_confirmed = false;  // that it was lent until it had been fetched

  bool is_good() const {
    const bool is_here = loan == nullptr ? is_complete : loan->is_done && !loan->has_failed;
    return is_here && (!is_lent || is_confirmed);
  }
};

// A user of the rail. The rail calls it inside poll() and send().
class UcxUser {
 public:
  virtual ~UcxUser() = default;
  // False: it does not want the arrival, which stays the rail's.
  virtual bool message_began(uint64_t number, const Arrival& arrival) = 0;
  virtual void message_complete(uint64_t number) = 0;
  // The arrival, which has begun, is the rail's again.
  virtual void message_failed(uint64_t number, const std::string& why) = 0;
  virtual void messages_were_read(uint64_t count) = 0;
  // A message that we lent; and one that the peer did.
  virtual void message_was_fetched(uint64_t number) = 0;
  virtual void message_confirmed(uint64_t number) = 0;
  // The endpoint is of no use any more.
  virtual void failed(const std::string& why) = 0;
  // At the end of every poll().
  virtual void settle() = 0;
};

class UcxRail {
 public:
  // `interface`: of the NIC; kLoopback: for peers of this host, also through shared memory.
  static Result<std::unique_ptr<UcxRail>> open(const std::string& interface,
                                               UcxRemoteMemory remote_memory);
  ~UcxRail();
  UcxRail(const UcxRail&) = delete;
  UcxRail& operator=(const UcxRail&) = delete;

  // Of the worker: bytes that peers need to connect.
  const std::string& address() const { return address_; }
  // Readable when there is news after arm().
  int descriptor() const { return descriptor_; }
  void poll();
  // False: there is news already.
  bool arm();

  // An endpoint to the worker at `address`, for the messages of `key`.
  Status add(uint64_t key, UcxUser& user, const std::string& address);
  void remove(uint64_t key);
  // Whether peers are asked to let us fetch, and not to write.
  bool seeks_remote_memory() const { return seeks_remote_memory_; }
  // Whether messages may be lent, once the peer is there.
  bool has_remote_memory(uint64_t key) const;

  // A slot to fill; send() gives it to UCX.
  Slot* take_slot(uint64_t key, MessageKind kind = MessageKind::data);
  void send(Slot* slot);
  // The message has been read.
  void release(const Arrival& arrival);

  // Only where has_remote_memory(). The memory is UCX's until the loan is done, or end_loans().
  Loan* lend(const MessageHeader& header, const std::byte* data, size_t bytes);
  // Both fetch a message that was lent. message_complete() tells of one that is in its slot.
  Loan* fetch_to(std::byte* to, const MessageHeader& header, void* offered, size_t bytes);
  void receive(Slot* slot, void* offered, size_t bytes);
  // The caller has no use for it any more.
  void give_back(Loan* loan);
  // Closes the endpoint. Nothing of ours reads memory that was lent any more. Memory that is
  // fetched to is written until progress() has done those loans: soon.
  void end_loans(uint64_t key);
  void progress() { api_.progress(worker_); }

 private:
  struct Member {
    UcxRail* rail = nullptr;
    uint64_t key = 0;
    UcxUser* user = nullptr;            // null: it is gone
    UcxApi::Handle endpoint = nullptr;  // null: there is none, or no more
    bool is_flushing = false;           // UCX sends what is left
    bool is_closing = false;            // by force
  };

  explicit UcxRail(const UcxApi& api) : api_(api) {}

  Status start(const std::string& interface, UcxRemoteMemory remote_memory);
  Status set_handler(MessageKind kind, abi::MessageHandler handler);
  UcxUser* user_of(uint64_t key) const;
  void give_back(Slot* slot) { free_.push_back(slot); }
  void received_into(Slot* slot, abi::Code code);
  Loan* new_loan(const MessageHeader& header);
  void loan_ended(Loan* loan, abi::Code code);
  abi::Code begin(const void* header, size_t header_bytes, void* data, size_t bytes,
                  const abi::MessageParam* param, bool is_lent);
  static abi::Code on_data(void* rail, const void* header, size_t header_bytes, void* data,
                           size_t bytes, const abi::MessageParam* param);
  static abi::Code on_lent(void* rail, const void* header, size_t header_bytes, void* data,
                           size_t bytes, const abi::MessageParam* param);
  // Of a message that is a number alone.
  template <void (UcxUser::*kTell)(uint64_t)>
  static abi::Code on_number(void* rail, const void* header, size_t header_bytes, void* data,
                             size_t bytes, const abi::MessageParam* param);
  static void on_sent(void* request, abi::Code code, void* slot);
  static void on_received(void* request, abi::Code code, size_t bytes, void* slot);
  static void on_fetched_from_us(void* request, abi::Code code, void* loan);
  static void on_fetched(void* request, abi::Code code, size_t bytes, void* loan);
  void close(Member& member);
  void close_flushed();
  static void on_flushed(void* request, abi::Code code, void* member);
  static void on_closed(void* request, abi::Code code, void* member);
  static void on_error(void* member, void* endpoint, abi::Code code);

  const UcxApi& api_;
  UcxApi::Handle context_ = nullptr;
  UcxApi::Handle worker_ = nullptr;
  int descriptor_ = -1;
  bool seeks_remote_memory_ = false;
  std::string address_;
  std::map<uint64_t, Member> members_;  // by key; UCX knows their addresses
  std::vector<std::unique_ptr<Loan>> loans_;
  std::vector<std::unique_ptr<Slot>> slots_;
  std::vector<Slot*> free_;  // the last one that came back is in the cache: it goes first
};

}  // namespace dmlcomm::transport::ucx
