// Snapshot: the weights and the rule's state of one model at one clock, for a checkpoint; and
// SnapshotKeeper, which tells each piece when to copy itself into it.
//
// Pieces pass a clock at different times. Each copies itself when it has applied all windows before
// that clock and none after it, so the whole is the state of all servers at that clock.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <new>
#include <utility>
#include <vector>

#include "base/log.h"

namespace dmlcomm::ps {

// A push that the weights of a piece contain, and that its worker may repeat.
struct AppliedPush {
  uint64_t worker = 0;
  uint64_t incarnation = 0;  // of the worker
  uint64_t sequence = 0;
};

struct ShardSnapshot {
  uint32_t shard = 0;
  // By space and then by slot: the weights (slot 0), the state of the rule.
  std::vector<std::vector<std::byte>> arrays;
  std::vector<uint64_t> steps;                   // by piece: updates so far
  std::vector<std::vector<AppliedPush>> pushes;  // by piece
};

struct Snapshot {
  uint32_t model = 0;
  uint64_t clock = 0;
  std::vector<uint32_t> workers;  // that have closed the clock, or were there
  std::vector<ShardSnapshot> shards;
};

class SnapshotKeeper {
 public:
  // `describe` makes the snapshot of a clock that is reached now, and `allocate` gives it arrays,
  // which `num_pieces` fill. Every `every` clocks; 0: never.
  SnapshotKeeper(uint64_t every, size_t num_pieces,
                 std::function<std::shared_ptr<Snapshot>(uint64_t)> describe,
                 std::function<void(Snapshot&)> allocate)
      : every_(every),
        num_pieces_(num_pieces),
        describe_(std::move(describe)),
        allocate_(std::move(allocate)) {}

  bool is_at(uint64_t version) const {
    const uint64_t every = every_.load();
    return every > 0 && version % every == 0;
  }
  // Every clock has one from now on. The first is that of `clock`, which no piece has passed,
  // unless it has had one.
  void take_all_from(uint64_t clock) {
    std::lock_guard lock(mutex_);
    every_.store(1);
    reach(clock);
  }

  // A piece has reached `clock`, or stands at it. Returns the snapshot to copy itself into, or
  // null: while a complete snapshot has not been taken no other begins.
  std::shared_ptr<Snapshot> at(uint64_t clock) {
    std::lock_guard lock(mutex_);
    reach(clock);
    return filling(clock);
  }

  // A piece leaves `clock`. Returns the snapshot to copy itself into before, unless it has; or
  // null: then no snapshot of that clock begins any more.
  std::shared_ptr<Snapshot> leave(uint64_t clock) {
    std::lock_guard lock(mutex_);
    if (next_ != nullptr && next_->clock <= clock) next_ = nullptr;
    return filling(clock);
  }

  bool is_filling() const { return is_filling_.load(); }

  // Whether a snapshot may begin with a clock up to `clock` to which no piece has come yet.
  bool is_due(uint64_t clock) {
    std::lock_guard lock(mutex_);
    return every_.load() > 0 && last_up_to(clock) > last_clock_;
  }
  // All pieces begin at `clock`, which has a snapshot already.
  void restored(uint64_t clock) {
    std::lock_guard lock(mutex_);
    last_clock_ = clock;
  }

  // The first stop of a piece at `version` on its way to `until`: the clock of the snapshot that is
  // being filled, or else the last clock at which one may begin. Then none begins at a clock that
  // the piece has passed.
  uint64_t next_stop(uint64_t version, uint64_t until) {
    if (every_.load() == 0) return until;
    std::lock_guard lock(mutex_);
    if (filling_ != nullptr && filling_->clock > version && filling_->clock <= until) {
      return filling_->clock;
    }
    const uint64_t last = last_up_to(until);
    if (last <= version) return until;
    reach(last);
    return last;
  }

  // A piece is in the snapshot that at() or leave() has returned; true if it was the last.
  bool done(const std::shared_ptr<Snapshot>& snapshot) {
    std::lock_guard lock(mutex_);
    if (snapshot != filling_ || --num_missing_ > 0) return false;
    complete_ = std::move(filling_);
    filling_ = nullptr;
    is_filling_.store(false);
    return true;
  }

  // The complete one, or null. The next begins if all pieces are still at its clock: so the last
  // clock of a job gets a snapshot although the one before waited to be written.
  std::shared_ptr<Snapshot> take() {
    std::lock_guard lock(mutex_);
    std::shared_ptr<Snapshot> taken = std::exchange(complete_, nullptr);
    begin_next();
    return taken;
  }

 private:
  // The last clock up to `clock` that a snapshot may begin with.
  uint64_t last_up_to(uint64_t clock) const { return clock / every_.load() * every_.load(); }

  // --- with mutex_ held ---

  void reach(uint64_t clock) {
    if (clock <= last_clock_) return;
    last_clock_ = clock;
    next_ = describe_(clock);
    begin_next();
  }

  void begin_next() {
    if (filling_ != nullptr || complete_ != nullptr || next_ == nullptr) return;
    try {
      allocate_(*next_);
    } catch (const std::bad_alloc&) {
      log_error("no memory for the checkpoint of clock ", next_->clock, ": it is left out");
      next_ = nullptr;
      return;
    }
    filling_ = std::exchange(next_, nullptr);
    num_missing_ = num_pieces_;
    is_filling_.store(true);
  }

  std::shared_ptr<Snapshot> filling(uint64_t clock) const {
    return filling_ != nullptr && filling_->clock == clock ? filling_ : nullptr;
  }

  std::atomic<uint64_t> every_;
  const size_t num_pieces_;
  const std::function<std::shared_ptr<Snapshot>(uint64_t)> describe_;
  const std::function<void(Snapshot&)> allocate_;
  std::atomic<bool> is_filling_{false};
  std::mutex mutex_;
  // Guarded by mutex_.
  std::shared_ptr<Snapshot> next_;  // of last_clock_, without arrays; null: begun, or passed
  std::shared_ptr<Snapshot> filling_;
  std::shared_ptr<Snapshot> complete_;
  uint64_t last_clock_ = 0;  // the highest that any piece has reached, or goes to
  size_t num_missing_ = 0;
};

}  // namespace dmlcomm::ps
