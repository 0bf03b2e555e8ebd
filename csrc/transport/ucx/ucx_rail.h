// UcxRail: UCX on one NIC of this rank: a context that may use no other device, and a worker, which
// the endpoints of all peers on that rail share.
//
// Bytes travel in active messages from slots of the rail. A slot belongs to UCX until its request
// ends, which may be after the end of the channel that used it. A message carries a key, by which
// the rail finds its channel, and a number.
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

#include "base/status.h"
#include "transport/ucx/ucx_api.h"

namespace dmlcomm::transport::ucx {

// A part of a message that large takes one of these.
constexpr size_t kSlotBytes = 256 * 1024;

class UcxRail;

// On the wire, in the order of bytes of the host.
struct MessageHeader {
  uint64_t key = 0;
  uint64_t number = 0;  // of a data message, from 0 on; or of those that have been read
};

struct Slot {
  UcxRail* rail = nullptr;
  MessageHeader header;
  size_t bytes = 0;
  // Not cleared: it is written before it is read.
  std::unique_ptr<std::byte[]> memory{new std::byte[kSlotBytes]};
};

// A message that has come: in a slot, or in memory of UCX.
struct Arrival {
  const std::byte* data = nullptr;
  size_t bytes = 0;
  Slot* slot = nullptr;
  void* kept = nullptr;
  bool is_complete = false;
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
  // The endpoint is of no use any more.
  virtual void failed(const std::string& why) = 0;
  // At the end of every poll().
  virtual void settle() = 0;
};

class UcxRail {
 public:
  // `interface`: of the NIC; "lo": for peers of this host, also through shared memory.
  static Result<std::unique_ptr<UcxRail>> open(const std::string& interface);
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

  // A slot to fill; send() gives it to UCX. Where `bytes` is 0 it tells how many have been read.
  Slot* take_slot(uint64_t key);
  void send(Slot* slot);
  // The message has been read.
  void release(const Arrival& arrival);

 private:
  struct Member {
    UcxRail* rail = nullptr;
    uint64_t key = 0;
    UcxUser* user = nullptr;            // null: it is gone
    UcxApi::Handle endpoint = nullptr;  // null: UCX closes it
    bool is_flushing = false;           // UCX sends what is left
  };

  explicit UcxRail(const UcxApi& api) : api_(api) {}

  Status start(const std::string& interface);
  Status set_handler(unsigned id, abi::MessageHandler handler);
  UcxUser* user_of(uint64_t key) const;
  void give_back(Slot* slot) { free_.push_back(slot); }
  void receive(Slot* slot, void* message, size_t bytes);
  void received_into(Slot* slot, abi::Code code);
  static abi::Code on_data(void* rail, const void* header, size_t header_bytes, void* data,
                           size_t bytes, const abi::MessageParam* param);
  static abi::Code on_count(void* rail, const void* header, size_t header_bytes, void* data,
                            size_t bytes, const abi::MessageParam* param);
  static void on_sent(void* request, abi::Code code, void* slot);
  static void on_received(void* request, abi::Code code, size_t bytes, void* slot);
  void close_flushed();
  static void on_flushed(void* request, abi::Code code, void* member);
  static void on_closed(void* request, abi::Code code, void* member);
  static void on_error(void* member, void* endpoint, abi::Code code);

  const UcxApi& api_;
  UcxApi::Handle context_ = nullptr;
  UcxApi::Handle worker_ = nullptr;
  int descriptor_ = -1;
  std::string address_;
  std::map<uint64_t, Member> members_;  // by key; UCX knows their addresses
  std::vector<std::unique_ptr<Slot>> slots_;
  std::vector<Slot*> free_;  // the last one that came back is in the cache: it goes first
};

}  // namespace dmlcomm::transport::ucx
