// Engine: the heart of a communicator. It takes operations in, starts them in order, drives them,
// and keeps the first failure.
//
// Who drives. Exactly one thread at a time, the holder of the progress lock, touches links, runners
// and memory: the progress thread, or a caller that waits. A caller that finds the lock taken
// sleeps until its operation is done. The progress thread sleeps while there is nothing to do, and
// looks after heartbeats and newcomers every tick.
//
// Order. Collectives run one after the other, in the order of their calls, which is the same on all
// ranks. Point-to-point operations run beside them.
//
// Locks: the progress lock before submit_mutex_; operations are completed (and their callbacks run)
// without either.
#pragma once

#include <atomic>
#include <condition_variable>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "base/fork_guard.h"
#include "engine/collective_history.h"
#include "engine/compiled_plan.h"
#include "engine/engine_options.h"
#include "engine/huge_pages.h"
#include "engine/local/board.h"
#include "engine/local/placement.h"
#include "engine/op_state.h"
#include "engine/point_to_point.h"
#include "engine/runner.h"
#include "memory/memory_pool.h"
#include "schedule/planner.h"
#include "transport/mesh.h"

namespace dmlcomm::engine {

class Engine final : public Driver,
                     private transport::LinkEvents,
                     public std::enable_shared_from_this<Engine> {
 public:
  // Meets the other ranks and starts the progress thread.
  static Result<std::shared_ptr<Engine>> create(const EngineOptions& options,
                                                const std::vector<transport::RailAddress>& rails,
                                                transport::Rendezvous& rendezvous,
                                                std::chrono::milliseconds timeout);
  ~Engine() override;

  // Takes an operation in. Never blocks; a failure is the operation's.
  OperationPtr submit(OpRequest request, Deadline deadline, bool inline_wait);
  // An operation that has ended already.
  OperationPtr finished(OpRequest request, const Status& status);

  bool drive_until(OpState& op, Deadline deadline) override;

  void abort(const std::string& reason);
  void close();
  Status error() const;
  uint64_t sequence() const { return num_collectives_.load(std::memory_order_relaxed); }
  bool shares_memory() const { return mesh_->num_sharing() > 1; }
  bool has_writer() const { return mesh_->has_writer(); }
  std::string description() const;
  std::vector<transport::RailCounters> rails();
  const std::string& host_name() const { return mesh_->job().own_host().host_name; }

 private:
  struct Running {
    std::shared_ptr<OpState> op;
    std::unique_ptr<Runner> runner;
  };
  // The end of an operation, noted under the progress lock and reported without it.
  struct Ended {
    std::shared_ptr<OpState> op;
    Status status;
  };

  explicit Engine(const EngineOptions& options);

  // In a forked child there is no progress thread, and no connection.
  bool is_copy() const { return fork_generation() != fork_generation_; }
  void choose_polling();

  // --- driving; with the progress lock ---
  void drive(std::unique_lock<std::mutex>& lock, OpState* until, Deadline deadline);
  bool step();
  void take_submitted();
  bool greeted(bool* moved);
  bool waits_for(int peer) const;
  // A call of a runner, which may hear of failures while it is on the stack.
  template <typename Call>
  Status in_runner(Call call);
  void start(Running& running);
  std::unique_ptr<Runner> make_runner(OpState& op, Status* status);
  bool advance_all();
  bool advance(Running& running);
  void end(Running& running, const Status& status);
  void tick();
  void check_deadlines();
  void relax_after(int64_t waited_ns) const;
  void rest(int64_t idle_since_ns, const OpState* until, Deadline deadline);
  bool has_news() const;
  void tell_counters();
  void report_ended(std::unique_lock<std::mutex>& lock);
  void run();
  void wake_thread();
  void leave_to_thread();

  // --- failure; with the progress lock ---
  void fail(const Status& status);
  void end_what_waits_for_nobody();
  bool waits_for_nobody(const Runner& runner) const;
  std::string name_of(int peer) const;
  std::string current_text() const;
  Status timed_out(const Running& running) const;
  Status disagreement_error(const std::optional<CollectiveHistory::Disagreement>& found) const;
  template <typename Visit>
  void for_each_running(Visit visit);

  // --- LinkEvents ---
  void on_sent(transport::SendRequest& request) override;
  void on_arrived(transport::RecvRequest& request) override;
  void provide_window(transport::RecvRequest& request) override;
  transport::RecvRequest* claim_any_source(transport::Tag tag, uint64_t before_order) override;
  Status check_operation(int peer, transport::Tag tag, const transport::OpInfo& theirs) override;
  Status size_mismatch(int peer, const transport::RecvRequest& ours,
                       const transport::OpInfo& theirs, uint64_t their_bytes) override;
  void on_rail_event(int peer, bool lost, const std::string& text) override;
  void on_failed(int peer, const Status& status, bool reported) override;
  void on_goodbye(int peer) override;

  // Constant after create().
  const EngineOptions options_;
  const int fork_generation_;   // of the process that made this object
  bool crowded_ = false;        // the ranks of this host leave no core free
  int64_t poll_ns_ = 0;         // how long to poll before sleeping
  int64_t yield_after_ns_ = 0;  // where they leave none: how long of that without yielding
  std::unique_ptr<transport::Mesh> mesh_;
  std::thread thread_;

  // Guarded by the progress lock.
  std::mutex progress_;
  std::unique_ptr<schedule::Planner> planner_;
  std::unique_ptr<Board> board_;
  std::unique_ptr<Placement> placement_;  // where all ranks are on one host and fill its cores
  MemoryPool pool_;
  HugePages huge_pages_;
  std::unordered_map<const schedule::Schedule*, std::shared_ptr<const CompiledPlan>> plans_;
  Loopback loopback_;               // before messages_, whose runners leave it when they end
  std::list<Running> collectives_;  // the first runs, the others wait for their turn
  std::list<Running> messages_;     // point-to-point
  std::vector<Ended> ended_;
  Status failure_;             // the same as error_, for the driver
  bool in_runner_ = false;     // a runner's start() or advance() is on the stack
  bool is_finishing_ = false;  // end_what_waits_for_nobody() is
  uint64_t num_receives_ = 0;
  uint32_t num_steps_ = 0;
  int64_t next_tick_ns_ = 0;
  CollectiveHistory history_;

  // Guarded by submit_mutex_.
  mutable std::mutex submit_mutex_;
  std::vector<std::shared_ptr<OpState>> submitted_;
  Status error_;         // the first failure
  Status abort_reason_;  // set by abort(), taken by the driver
  // Requests of rails() are numbered: those up to counters_told_ are answered by counters_.
  uint64_t counters_asked_ = 0;
  uint64_t counters_told_ = 0;
  std::vector<transport::RailCounters> counters_;
  std::condition_variable counters_changed_;

  // Synchronised by themselves.
  std::atomic<bool> has_submitted_{false};  // something under submit_mutex_ waits for the driver
  std::atomic<uint32_t> num_pending_{0};
  std::atomic<uint64_t> num_collectives_{0};
  std::atomic<bool> stopping_{false};

  // For the progress thread's sleep.
  std::mutex idle_mutex_;
  std::condition_variable idle_changed_;
  // Guarded by idle_mutex_.
  bool has_work_ = false;
  bool has_leftovers_ = false;  // a caller that drove has left while operations were pending
};

}  // namespace dmlcomm::engine
