// Engine: the heart of a communicator. It plans and starts operations in the orders of the
// OperationQueue, runs them with runners, and fails them all with the first failure. The
// ProgressDriver calls it.
//
// All private methods require the progress lock.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/fork_guard.h"
#include "engine/collective_history.h"
#include "engine/communicator.h"
#include "engine/compiled_plan.h"
#include "engine/inspector.h"
#include "engine/local/agenda.h"
#include "engine/local/board.h"
#include "engine/local/placement.h"
#include "engine/op_state.h"
#include "engine/operation_queue.h"
#include "engine/point_to_point.h"
#include "engine/progress_driver.h"
#include "engine/rail_sharing.h"
#include "engine/runner.h"
#include "engine/tuner.h"
#include "memory/huge_pages.h"
#include "memory/memory_pool.h"
#include "schedule/planner.h"
#include "transport/mesh.h"

namespace dmlcomm::engine {

class Engine final : public Inspectable, private Steppable, private transport::LinkEvents {
 public:
  // Meets the other ranks and starts the progress thread. `options` have a configuration.
  static Result<std::shared_ptr<Engine>> create(CommunicatorOptions options,
                                                transport::Rendezvous& rendezvous);
  ~Engine() override;

  // Adds an operation. Never blocks; the operation carries any failure.
  OperationPtr submit(OpRequest request, Deadline deadline, bool inline_wait);
  // An operation that has ended already.
  OperationPtr finished(OpRequest request, const Status& status);

  // The seconds that an operation would take, by the cost model at the rates in use; starts
  // nothing.
  Result<double> estimate(const OpRequest& request);

  const CommunicatorOptions& options() const { return options_; }
  void abort(const std::string& reason);
  void close();
  Status error() const { return queue_.error(); }
  uint64_t sequence() const { return queue_.last_sequence(); }
  uint64_t number() const { return mesh_->job().key.job_id; }
  double silent_s(int peer) const { return mesh_->silent_s(peer); }
  bool shares_memory() const { return mesh_->num_sharing() > 1; }
  bool has_writer() const { return mesh_->has_writer(); }
  std::string description() const;
  std::vector<transport::RailCounters> rails();
  Inspection inspect() override;
  const std::string& host_name() const { return mesh_->job().own_host().host_name; }

 private:
  using Running = OperationQueue::Running;

  explicit Engine(CommunicatorOptions options);

  // In a forked child there is no progress thread, and no connection.
  bool is_copy() const { return fork_generation() != fork_generation_; }

  // --- Steppable ---
  bool step(bool look) override;
  bool advance_all() override;
  bool is_connecting() const override;
  void tick() override;
  void on_exception(const std::exception& error) override;

  bool exchanged_capabilities(bool* moved);
  bool waits_for(int peer);
  // A call of a runner, which may hear of failures while it is on the stack.
  template <typename Call>
  Status in_runner(Call call);
  void plan_collectives(bool* moved);
  Status plan(Running& running);
  double message_seconds(const OpRequest& request) const;
  Running* next_to_start();
  Running* unless_refused(const Result<Running*>& next);
  void notice_left_peers();
  bool uses_rails(const OpState& op) const;
  void start(Running& running);
  void consider_huge_pages(const OpRequest& request);
  std::unique_ptr<Runner> make_runner(Running& running);
  bool advance(Running& running);
  bool advance_messages();
  void learn_of_tickets(const Running& running);
  void check_deadlines();

  // --- inspection ---
  Inspection inspection();
  std::vector<transport::RailCounters> rail_counters() const;
  std::string operation_text(const Running& running);
  // Ranks without which the operation cannot go on.
  std::vector<int> awaited_by(const Running& running);

  // --- failure ---
  void fail(const Status& status);
  void end_all(const Status& status);
  void end_what_waits_for_nobody();
  bool waits_for_nobody(const Runner& runner) const;
  std::string name_of(int peer) const;
  std::string current_text();
  Status aborted(const std::string& reason) const;
  Status timed_out(const Running& running);
  Status disagreement_error(const std::optional<CollectiveHistory::Disagreement>& found) const;

  // --- LinkEvents ---
  void on_sent(transport::SendRequest& request) override;
  void on_arrived(transport::RecvRequest& request) override;
  void provide_window(transport::RecvRequest& request) override;
  transport::RecvRequest* claim_any_source(transport::Tag tag, uint64_t before_order) override;
  Status check_operation(int peer, transport::Tag tag, const transport::OpInfo& theirs) override;
  uint64_t oldest_collective() const override { return queue_.oldest_collective(); }
  bool runs_others() const override { return queue_.runs_several(); }
  Status size_mismatch(int peer, const transport::RecvRequest& ours,
                       const transport::OpInfo& theirs, uint64_t their_bytes) override;
  void on_rail_event(int peer, bool lost, const std::string& text) override;
  void on_failed(int peer, const Status& status, bool reported) override;
  void on_goodbye(int peer) override;

  // Constant after create().
  const CommunicatorOptions options_;
  const int fork_generation_;  // of the process that made this object
  std::unique_ptr<transport::Mesh> mesh_;
  // Guarded by the progress lock.
  std::unique_ptr<schedule::Planner> planner_;
  std::unique_ptr<Tuner> tuner_;
  std::unique_ptr<Board> board_;
  std::optional<Agenda> agenda_;          // on the board
  std::unique_ptr<Board> second_board_;   // from the agenda's begin on
  const Running* beside_ = nullptr;       // what runs there
  std::unique_ptr<Placement> placement_;  // where all ranks are on one host and fill its cores
  MemoryPool pool_;
  HugePages huge_pages_;
  std::unordered_map<const schedule::Schedule*, std::shared_ptr<const CompiledPlan>> plans_;
  Messages messages_;
  OperationQueue queue_;  // after what its runners use; submission is synchronised by itself
  std::unique_ptr<RailSharing> rail_sharing_;
  Status failure_;             // the same as error(), for the driver
  bool in_runner_ = false;     // a runner's start() or advance() is on the stack
  bool is_finishing_ = false;  // end_what_waits_for_nobody() is
  CollectiveHistory history_;

  std::unique_ptr<ProgressDriver> driver_;  // constant after create()
  std::atomic<bool> closed_{false};
};

}  // namespace dmlcomm::engine
