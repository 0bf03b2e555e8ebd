// Feeder: sends or receives any number of messages of one tag in order, a few at a time.
//
// Each pending operation of a communicator costs every step of its engine a little; a model of a
// thousand pieces must not be a thousand of them. The thread that finishes one message starts the
// next.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <mutex>

#include "engine/communicator.h"

namespace dmlcomm::ps {

class Feeder : public std::enable_shared_from_this<Feeder> {
 public:
  enum class Direction { send, receive };

  struct Item {
    Span memory;
    bool inline_wait = false;                 // see engine::OpOptions
    std::function<void(const Status&)> done;  // after the next item has been started
    uint8_t ticket = kDefaultTicket;
  };

  // With `peer`, at most `in_flight` at once.
  Feeder(engine::Communicator& communicator, Direction direction, int peer, uint32_t tag,
         size_t in_flight)
      : communicator_(communicator),
        direction_(direction),
        peer_(peer),
        tag_(tag),
        max_in_flight_(in_flight) {}

  // Returns its number: 1, 2 and so on.
  uint64_t add(Item item);

  // The first of the pending operations to end, up to that of message `last`; or null. A later one
  // may wait for somebody who waits for these.
  engine::OperationPtr oldest(uint64_t last) const;

 private:
  struct Pending {
    uint64_t number;
    engine::OperationPtr op;
  };

  void feed();
  engine::OperationPtr start(const Item& item);

  engine::Communicator& communicator_;
  const Direction direction_;
  const int peer_;
  const uint32_t tag_;
  const size_t max_in_flight_;

  mutable std::mutex mutex_;
  // Guarded by mutex_.
  std::deque<Item> waiting_;
  std::deque<Pending> in_flight_;
  uint64_t num_added_ = 0;
  uint64_t num_started_ = 0;
  bool feeding_ = false;  // by one thread at a time, so that the order stays
};

}  // namespace dmlcomm::ps
