// ProgressDriver: chooses the thread that drives the operations of a communicator, and how the
// other threads wait.
//
// Exactly one thread at a time, the holder of the progress lock, touches links, runners and memory:
// the progress thread, or a caller that waits. A caller that finds the lock taken sleeps until its
// operation is done. The progress thread sleeps while there is nothing to do, neither operations
// nor frames that wait to be sent, and looks after heartbeats and newcomers every tick.
//
// Locks: the progress lock before calls_mutex_.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "base/config.h"
#include "engine/operation_queue.h"
#include "transport/mesh.h"

namespace dmlcomm::engine {

// The engine, to its driver; all calls require the progress lock.
class Steppable {
 public:
  virtual ~Steppable() = default;
  // Moves all operations as far as possible; looks at the sockets if `look`. True if any moved.
  virtual bool step(bool look) = 0;
  // The part of a step that needs no events.
  virtual bool advance_all() = 0;
  // Nothing can move before ranks are connected: only sockets have news.
  virtual bool is_connecting() const = 0;
  // At least every Mesh::tick_ms().
  virtual void tick() = 0;
  // One of these calls, or a task of another thread, has thrown: all operations fail.
  virtual void on_exception(const std::exception& error) = 0;
};

class ProgressDriver final : public Driver {
 public:
  // `shares_cores`: see CommunicatorOptions.
  ProgressDriver(transport::Mesh& mesh, OperationQueue& queue, Steppable& steps,
                 const Config& config, bool shares_cores);

  // The ranks of this host leave no core free.
  bool is_crowded() const { return crowded_; }

  // Starts the progress thread, which keeps `owner` alive until it has ended.
  Status start(std::shared_ptr<void> owner);
  // Ends the progress thread. False if stop() was called before.
  bool stop();
  // For a forked child, in which the thread does not exist.
  void forget_thread() { thread_.detach(); }

  bool drive_until(OpState& op, Deadline deadline) override;
  // To be called after the submission of an operation that no caller waits for.
  void wake_thread();
  // The progress lock; waits for as long as another thread drives.
  std::unique_lock<std::mutex> lock() { return std::unique_lock(progress_); }
  // Lets the driving thread call `task` with the progress lock, and returns after that call.
  void call(const std::function<void()>& task);

 private:
  void drive(std::unique_lock<std::mutex>& lock, OpState* until, Deadline deadline);
  bool has_work_left() const;
  bool step();
  void tick();
  template <typename Call>
  bool guarded(Call call);
  void relax_after(int64_t waited_ns) const;
  // False once the deadline has passed.
  bool rest(const OpState* until, Deadline deadline);
  bool has_calls() const;
  void take_calls();
  void report_ended(std::unique_lock<std::mutex>& lock);
  void run();
  void leave_to_thread();

  // Constant after construction.
  transport::Mesh& mesh_;
  OperationQueue& queue_;
  Steppable& steps_;
  bool crowded_ = false;
  bool yields_ = false;  // the ranks of this machine, on one host or several, leave none free
  int64_t poll_ns_ = 0;  // how long to poll before sleeping
  int64_t yield_after_ns_ = 0;  // if ranks leave no core free: the part of that without yielding
  std::chrono::microseconds connecting_pause_{};
  std::thread thread_;

  std::mutex progress_;
  // Guarded by progress_.
  uint32_t num_steps_ = 0;
  int64_t next_tick_ns_ = 0;
  int64_t idle_since_ns_ = 0;  // when a step first moved nothing since one did; 0: the last one did

  mutable std::mutex calls_mutex_;
  // Guarded by calls_mutex_.
  std::vector<const std::function<void()>*> calls_;
  uint64_t num_calls_ = 0;
  uint64_t num_called_ = 0;
  std::condition_variable called_;

  // Synchronised by themselves.
  std::atomic<bool> has_calls_{false};
  std::atomic<bool> stopping_{false};
  std::atomic<bool> frames_wait_{false};  // to be sent, when operations last ended

  // For the progress thread's sleep.
  std::mutex idle_mutex_;
  std::condition_variable idle_changed_;
  // Guarded by idle_mutex_.
  bool has_work_ = false;
  bool has_leftovers_ = false;  // a caller that drove has left while something was left to do
};

}  // namespace dmlcomm::engine
