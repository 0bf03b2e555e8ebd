// OperationQueue: the operations of a communicator between their submission and their end. It gives
// collectives their place in the sequence, decides which of them run, and keeps the first failure.
//
// Collectives are matched between ranks by their sequence numbers, and planned in that order, each
// when it is fewer than its window of places behind the oldest. Several run at once, so that a rail
// that one of them leaves idle carries another. Of those that are planned, the first by ticket and
// number starts for which it is true that
//  - it is the oldest; or fewer than kMaxRunning others with its ticket or a smaller one run, and
//    their tensors and its own stay below kMaxRunningBytes (one may have more if there is no
//    other), since data that comes for them may have to wait in windows; and all but the oldest
//    stay below kMaxBytesBesideOldest; and
//  - it has no memory in common with an earlier one that has not ended, if either writes there. If
//    it has, and the earlier one has not started, that takes over its ticket.
// The oldest always runs. So ranks may differ in tickets, and in which others run, without waiting
// in a circle. Point-to-point operations start at once.
//
// Locks: operations are completed, and their callbacks run, without any lock.
#pragma once

#include <atomic>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "engine/compiled_plan.h"
#include "engine/op_state.h"
#include "engine/runner.h"

namespace dmlcomm::engine {

class OperationQueue {
 public:
  struct Running {
    uint64_t sequence = 0;                           // of a collective
    std::shared_ptr<OpState> op;                     // null once it has ended
    std::unique_ptr<Runner> runner;                  // null before it has started
    const schedule::Algorithm* algorithm = nullptr;  // of a collective that has been planned
    std::shared_ptr<const CompiledPlan> plan;        // the same; null if it is no schedule
    bool has_started = false;
    bool is_message = false;
    std::list<Running>::iterator place;  // in its list
  };

  // `first_sequence`: number of the first collective.
  explicit OperationQueue(uint64_t first_sequence)
      : last_taken_(first_sequence - 1), last_sequence_(first_sequence - 1) {}

  // --- from any thread ---
  // Adds an operation. After a failure it has ended already.
  std::shared_ptr<OpState> submit(Driver* driver, OpRequest request, Deadline deadline);
  // An operation that has ended already.
  std::shared_ptr<OpState> finished(Driver* driver, OpRequest request, const Status& status);
  // Sets the first failure, which ends all later operations. False if there is one already.
  bool set_error(const Status& status);
  Status error() const;
  bool has_submitted() const;
  bool has_pending() const { return num_pending_.load(std::memory_order_acquire) > 0; }
  uint64_t last_sequence() const { return last_sequence_.load(std::memory_order_relaxed); }

  // --- with the progress lock ---
  // Moves submitted operations to the lists. True if there were any.
  bool take_submitted() {
    const bool has_any = has_submitted_.load(std::memory_order_acquire) || !taken_.empty();
    return has_any && take_what_is_submitted();
  }
  bool has_unplanned() const { return next_to_plan_ != collectives_.end(); }
  // The next collective to plan, or null.
  Running* next_to_plan();
  // How many places it is behind the oldest one.
  uint64_t distance(const Running& running) const { return running.sequence - oldest_collective(); }
  // It has its algorithm now, and may start.
  void planned(Running& running);
  // False: next_to_start() would find nothing.
  bool may_start_any() const { return may_have_startable_ || next_message_ != messages_.end(); }
  // The operation to start now, or null. It counts as running from now on.
  Running* next_to_start();
  // The same, of messages.
  Running* next_message();
  // Starts this collective, which has been planned; null if there is none.
  Running* start(uint64_t sequence);
  // Whether collective `sequence` has memory in common with an earlier one, if either writes there.
  bool waits_for_earlier(uint64_t sequence) const;
  // Notes the end of an operation, which stays in its list, without the operation, until sweep().
  void end(Running& running, const Status& status);
  void sweep() {
    if (!to_sweep_.empty()) drop_ended();
  }
  bool has_ended() const { return !ended_.empty(); }
  // Releases the lock, and completes the operations that have ended.
  void report_ended(std::unique_lock<std::mutex>& progress_lock);
  void clear();

  bool has_collectives() const { return !collectives_.empty(); }
  bool runs_collective() const { return num_running_ > 0; }
  bool runs_many_collectives() const { return num_running_ > 1; }
  // The last collective that has been taken.
  uint64_t last_taken() const { return last_taken_; }
  // `visit(running)` for every operation that has not ended: collectives in their order, then
  // point-to-point ones. Operations may end meanwhile.
  template <typename Visit>
  void for_each(Visit visit) {
    for (std::list<Running>* list : {&collectives_, &messages_}) {
      for (Running& running : *list) {
        if (running.op != nullptr) visit(running);
      }
    }
  }
  // The same, of the collectives that have been planned.
  template <typename Visit>
  void for_each_planned(Visit visit) {
    for (auto it = collectives_.begin(); it != next_to_plan_; ++it) {
      if (it->op != nullptr) visit(*it);
    }
  }
  // `visit(running)` for every collective that has not ended, in their order.
  template <typename Visit>
  void for_each_collective(Visit visit) const {
    for (const Running& running : collectives_) {
      if (running.op != nullptr) visit(running);
    }
  }
  // The first of these for which `test(running)` holds, or null.
  template <typename Test>
  Running* find_if(Test test) {
    Running* found = nullptr;
    for (std::list<Running>* list : {&collectives_, &messages_}) {
      for (auto it = list->begin(); it != list->end() && found == nullptr; ++it) {
        if (it->op != nullptr && test(*it)) found = &*it;
      }
    }
    return found;
  }
  // Whether any operation so far had another ticket than the default.
  bool has_tickets() const { return has_tickets_; }
  // Then: how many collectives have been called and have not ended. Else 0.
  uint64_t num_ticketed() const {
    return has_tickets_ ? last_sequence() + 1 - oldest_collective() : 0;
  }
  // A collective of large messages runs; and one of small messages, which go before all large ones.
  bool runs_large() const { return large_ < transport::kSendLast; }
  bool runs_small_beside_large() const { return runs_large() && small_ < large_; }
  bool runs_several() const { return num_running_ + messages_.size() > 1; }
  // The lowest number of a collective that has not ended.
  uint64_t oldest_collective() const {
    return collectives_.empty() ? last_taken_ + 1 : collectives_.front().sequence;
  }

 private:
  bool take_what_is_submitted();
  void drop_ended();
  void hurry_those_before(Running& added);
  // The next one by ticket and number, behind `last` (null: the first), of those that are planned
  // and have not started.
  Running* next_by_ticket(const Running* last);
  bool may_start(const Running& next);
  // That has not ended, or null.
  Running* oldest();
  Running* begin(Running* collective);
  void note_orders();

  // Guarded by the progress lock.
  std::list<Running> collectives_;  // in their order
  std::list<Running> messages_;
  std::vector<std::pair<std::shared_ptr<OpState>, Status>> ended_;
  std::vector<std::shared_ptr<OpState>> taken_;  // empty between calls: it keeps its memory
  std::vector<std::list<Running>::iterator> to_sweep_;
  std::list<Running>::iterator next_to_plan_ = collectives_.end();
  std::list<Running>::iterator next_message_ = messages_.end();  // to start
  size_t num_running_ = 0;                                       // collectives
  bool has_tickets_ = false;
  bool may_have_startable_ = true;  // something has changed
  // Of those that run, by ticket and size: the first small one, and the first large one.
  transport::SendOrder small_ = transport::kSendLast, large_ = transport::kSendLast;
  uint64_t last_taken_;

  // Guarded by mutex_.
  mutable std::mutex mutex_;
  std::vector<std::shared_ptr<OpState>> submitted_;
  uint64_t num_submitted_ = 0;
  Status error_;

  // Synchronised by themselves.
  std::atomic<bool> has_submitted_{false};
  std::atomic<uint32_t> num_pending_{0};
  std::atomic<uint64_t> last_sequence_;
};

}  // namespace dmlcomm::engine
