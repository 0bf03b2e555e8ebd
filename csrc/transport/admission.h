// Admission: connections before they are trusted. It accepts connections at the listeners, shakes
// hands (handshake.h), and drops strangers: those that do not know the job's secret, say nothing,
// or are too many. Its owner decides who may connect when.
//
// All calls require the progress lock.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "transport/event_loop.h"
#include "transport/handshake.h"
#include "transport/transport.h"

namespace dmlcomm::transport {

class Admission {
 public:
  // Decides about connections and takes them. Called inside calls of Admission and
  // EventLoop::look().
  class Owner {
   public:
    virtual ~Owner() = default;
    // Decides about a peer's connection. `none`: there is no such connection.
    enum class Answer { none, welcome, yield };
    virtual Answer answer(const Handshake& handshake) = 0;
    // Both ends want this connection.
    virtual void admitted(Handshake& handshake) = 0;
    // The peer's own connection to us replaces this one.
    virtual void yielded(int peer, size_t lane) = 0;
    // A connection of ours; `refused`: nobody listens there.
    virtual void failed(int peer, size_t lane, const Status& status, bool refused) = 0;
  };

  // `max_expected`: further connections at the same time are strangers.
  Admission(const Job& job, EventLoop& loop, Owner& owner, size_t max_expected);

  Status listen(UniqueFd listener, Transport& transport);
  // Shakes hands over a connection of ours that has been begun. Both ends call it `connection`;
  // errors begin with `what`.
  void enter(Attempt attempt, Transport& transport, int peer, size_t lane, std::string what,
             uint64_t connection, double timeout_s);
  void tick();
  // Nobody is let in any more.
  void close();
  bool is_busy() const { return !handshakes_.empty(); }

 private:
  struct Listener {
    UniqueFd fd;
    Transport* transport;
    bool is_short = false;  // of descriptors: connections wait for the next tick
  };

  void accept_all(uint32_t listener);
  void add(std::unique_ptr<Handshake> handshake);
  void advance(uint32_t id);
  void fail(const Handshake& handshake, const Status& status);
  void complete(Handshake& handshake);
  Hello own_hello() const;

  const Job& job_;
  EventLoop& loop_;
  Owner& owner_;
  const size_t max_expected_;
  const uint64_t nonce_;  // which peers read, if they can
  const uint32_t listener_source_;
  const uint32_t handshake_source_;
  std::vector<Listener> listeners_;
  std::map<uint32_t, std::unique_ptr<Handshake>> handshakes_;
  uint32_t next_id_ = 0;
};

}  // namespace dmlcomm::transport
