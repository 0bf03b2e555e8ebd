// PointToPointRunner: one message, sent or received. Messages: what those of a communicator share.
#pragma once

#include <list>
#include <vector>

#include "engine/op_state.h"
#include "engine/operation_queue.h"
#include "engine/runner.h"
#include "transport/mesh.h"

namespace dmlcomm::engine {

class PointToPointRunner;

struct Messages {
  // Of this rank to itself: the first of a pair waits for the second, in order per tag.
  std::list<PointToPointRunner*> own_sends, own_receives;
  // Receives that wait for any source, in the order in which they were posted.
  std::list<PointToPointRunner*> unclaimed;
  // Those that can go on. Thousands may wait meanwhile, and are not visited.
  std::vector<OperationQueue::Running*> ready;
  uint64_t num_receives = 0;
};

class PointToPointRunner final : public Runner {
 public:
  // Of `running`, which holds its operation.
  PointToPointRunner(transport::Mesh& mesh, transport::LinkEvents& events, Messages& messages,
                     OperationQueue::Running& running);
  ~PointToPointRunner() override;

  Status start() override;
  Status advance(bool* moved) override;
  bool complete() const override { return done_; }
  bool waits_for(int peer) const override;
  void on_sent(transport::SendRequest& request) override;
  void on_arrived(transport::RecvRequest& request) override;
  void provide_window(transport::RecvRequest& request) override;

  // Of a receive from any source.
  transport::RecvRequest& receive() { return in_; }

 private:
  bool sends() const { return op_.request().shape.kind == schedule::OpKind::send; }
  Status start_any_source();
  Status send_to_self();
  Status receive_from_self(bool* met);
  Status copy_to(transport::RecvRequest& request);
  void set_arrived();
  void set_ready();

  transport::Mesh& mesh_;
  transport::LinkEvents& events_;
  Messages& messages_;
  OperationQueue::Running& running_;
  OpState& op_;
  transport::SendRequest out_;
  transport::RecvRequest in_;
  bool arrived_ = false;   // or was sent
  bool is_ready_ = false;  // it is in messages_.ready
  bool done_ = false;
};

}  // namespace dmlcomm::engine
