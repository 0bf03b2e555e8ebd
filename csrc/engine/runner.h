// Runner: carries out one operation in one way. The engine starts it, and advances it until it is
// complete. All calls require the progress lock.
#pragma once

#include "base/status.h"
#include "transport/request.h"

namespace dmlcomm::engine {

struct CompiledPlan;

class Runner {
 public:
  // Every message carries `info`, this rank's view of the operation.
  explicit Runner(const transport::OpInfo& info) : info_(info) {}
  virtual ~Runner() = default;
  Runner(const Runner&) = delete;
  Runner& operator=(const Runner&) = delete;

  const transport::OpInfo& info() const { return info_; }

  // Posts the first messages. An error ends the communicator.
  virtual Status start() = 0;

  // Does at most one bounded piece of the work that is possible now. Sets `moved` if there was any.
  virtual Status advance(bool* moved) = 0;
  virtual bool complete() const = 0;
  // Of a schedule: what it carries out, and the reports of this rank and of all messages so far.
  virtual const CompiledPlan* plan() const { return nullptr; }
  virtual transport::RankReport report() const { return {}; }

  // Whether it cannot complete without `peer`.
  virtual bool waits_for(int peer) const = 0;

  // The operation has failed: afterwards nobody touches its memory any more, except for cooperative
  // copies of messages, which Link::end() stops.
  virtual void stop() {}

  // From the links, for a runner that has messages: only takes notes.
  virtual void on_sent(transport::SendRequest&) {}
  virtual void on_arrived(transport::RecvRequest&) {}
  virtual void provide_window(transport::RecvRequest&) {}

 private:
  const transport::OpInfo info_;
};

}  // namespace dmlcomm::engine
