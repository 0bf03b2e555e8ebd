// Runner: one way of carrying out one operation. The engine starts it, and asks it to move on until
// it is complete. All calls come with the progress lock held.
#pragma once

#include "base/status.h"
#include "transport/request.h"

namespace dmlcomm::engine {

class Runner {
 public:
  // `info` goes out with every message: what this rank believes to be doing.
  explicit Runner(const transport::OpInfo& info) : info_(info) {}
  virtual ~Runner() = default;
  Runner(const Runner&) = delete;
  Runner& operator=(const Runner&) = delete;

  const transport::OpInfo& info() const { return info_; }

  // Posts the first messages. An error ends the communicator.
  virtual Status start() = 0;

  // Does what can be done now, one bounded piece of work at most. Sets `moved` if anything was.
  virtual Status advance(bool* moved) = 0;
  virtual bool complete() const = 0;

  // Whether it cannot complete without `peer`.
  virtual bool waits_for(int peer) const = 0;

  // The operation has failed: when this returns nobody touches its memory any more, but for joint
  // copies of messages, which Link::end() stops.
  virtual void stop() {}

  // From the links: only takes notes.
  virtual void on_sent(transport::SendRequest& request) = 0;
  virtual void on_arrived(transport::RecvRequest& request) = 0;
  virtual void provide_window(transport::RecvRequest& request) = 0;

 private:
  const transport::OpInfo info_;
};

}  // namespace dmlcomm::engine
