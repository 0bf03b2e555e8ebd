// PointToPointRunner: one message, sent or received. Loopback: where messages to oneself meet.
#pragma once

#include <list>

#include "engine/op_state.h"
#include "engine/runner.h"
#include "transport/mesh.h"

namespace dmlcomm::engine {

class PointToPointRunner;

// Messages of this rank to itself: the first of a pair waits for the second, in order per tag.
struct Loopback {
  std::list<PointToPointRunner*> sends;
  std::list<PointToPointRunner*> receives;
};

class PointToPointRunner final : public Runner {
 public:
  // `order` grows from one point-to-point receive to the next.
  PointToPointRunner(transport::Mesh& mesh, transport::LinkEvents& events, Loopback& loopback,
                     OpState& op, uint64_t order);
  ~PointToPointRunner() override;

  Status start() override;
  Status advance(bool* moved) override;
  bool complete() const override { return done_; }
  bool waits_for(int peer) const override;
  void on_sent(transport::SendRequest& request) override;
  void on_arrived(transport::RecvRequest& request) override;
  void provide_window(transport::RecvRequest& request) override;

  // The receive, while it waits for a message from any source; else null.
  transport::RecvRequest* unclaimed();

 private:
  bool sends() const { return op_.request().shape.kind == schedule::OpKind::send; }
  Status start_any_source();
  Status send_to_self();
  Status receive_from_self(bool* met);
  Status copy_to(transport::RecvRequest& request);

  transport::Mesh& mesh_;
  transport::LinkEvents& events_;
  Loopback& loopback_;
  OpState& op_;
  transport::SendRequest out_;
  transport::RecvRequest in_;
  bool unclaimed_ = false;
  bool arrived_ = false;
  bool done_ = false;
};

}  // namespace dmlcomm::engine
