// RelayService: this process relays connections between other ranks, for hosts that share no switch
// (relay.h, relay_preamble.h). One service serves all groups of the process; a thread of its own
// drives it, because the ranks in between may be busy with anything, or idle.
//
// It listens on the addresses that it is told, and admits those who know a secret. It connects
// where they say, a hop at a time, but only to addresses of the job that the secret belongs to.
//
// The destructor listens no more, and gives the connections that it relays a moment to end, since
// those who leave together say their last words through each other. Any thread may call.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "transport/event_loop.h"
#include "transport/tcp/socket.h"

namespace dmlcomm::transport::tcp {

// A neighbour that has not taken a connection by then is not there, or its cable is dead.
constexpr double kHopTimeoutS = 0.4;

class RelayService {
 public:
  using Secret = std::array<std::byte, 16>;

  static Result<std::shared_ptr<RelayService>> create(PortRange ports,
                                                      const SocketOptions& options);
  ~RelayService();
  RelayService(const RelayService&) = delete;
  RelayService& operator=(const RelayService&) = delete;

  // The port at which it listens on this address from now on.
  Result<uint16_t> listen(const std::string& address);
  // Admits those who know `secret`, until dismiss() is called as often. They wait until allow()
  // says where they may be connected to: numeric addresses, as they write them.
  void admit(const Secret& secret);
  void allow(const Secret& secret, const std::set<std::string>& addresses);
  // Those who are connected already stay.
  void dismiss(const Secret& secret);

 private:
  class Guest;
  struct Permit {
    int num_duties = 0;
    std::set<std::string> addresses;
  };

  RelayService(PortRange ports, const SocketOptions& options);

  // The thread:
  void run();
  void take_step();
  void drop_all(const Status& reason);
  size_t num_listeners() const;
  void accept_all(uint32_t listener);
  Result<UniqueFd> accept(uint32_t listener);
  void drop_oldest_stranger();
  void advance(uint32_t id);
  void tick();
  // An error if it may not; false as long as that is not known.
  Result<bool> may_connect(const Secret& secret, const std::string& address) const;
  size_t max_strangers() const;

  // Constant after create().
  const PortRange ports_;
  const SocketOptions options_;
  std::thread thread_;

  EventLoop loop_;  // its thread's, but for watch() and wake()
  uint32_t listener_source_ = 0;
  uint32_t guest_source_ = 0;
  std::atomic<bool> stopping_{false};

  mutable std::mutex mutex_;
  // Guarded by mutex_.
  std::vector<UniqueFd> listeners_;
  std::map<std::string, uint16_t> ports_of_addresses_;
  std::map<Secret, Permit> permits_;

  // The thread's.
  std::map<uint32_t, std::unique_ptr<Guest>> guests_;
  std::set<uint32_t> busy_;               // have more to move
  std::set<uint32_t> waiting_listeners_;  // there was no descriptor for their next connection
  std::vector<std::byte> scratch_;
  uint32_t next_id_ = 0;
  int64_t next_tick_ns_ = 0;
  bool has_missed_events_ = false;  // an exception came between
};

// Holds the service of a process, and lets those in who know a secret, for as long as it lives; see
// RelayService.
class RelayDuty {
 public:
  RelayDuty(std::shared_ptr<RelayService> service, const RelayService::Secret& secret)
      : service_(std::move(service)), secret_(secret) {
    service_->admit(secret_);
  }
  ~RelayDuty() { service_->dismiss(secret_); }
  RelayDuty(const RelayDuty&) = delete;
  RelayDuty& operator=(const RelayDuty&) = delete;

  Result<uint16_t> listen(const std::string& address) { return service_->listen(address); }
  void allow(const std::set<std::string>& addresses) { service_->allow(secret_, addresses); }

 private:
  const std::shared_ptr<RelayService> service_;
  const RelayService::Secret secret_;
};

}  // namespace dmlcomm::transport::tcp
