// Model: the shards of one model that this server holds, and the clocks of its workers.
//
// Two ways to apply pushes. At the clock: the pushes of a clock are added up in a window; when
// every worker that counts has closed the clock, the window becomes one update. So the weights go
// through the same versions whatever the order of arrival, and version v contains all pushes of
// clocks before v. At the push: each is an update of its own.
//
// A worker closes a clock for all pieces by tick(), or piece by piece by a push that `closes`: then
// a piece can be updated and pulled while the next ones are still on their way.
//
// The model of a proxy has an Upstream in the place of a rule: a window that every worker below has
// closed goes up, piece by piece, and the answer is the next version of the piece. Where updates
// are plain sums, pulls that may be stale show what is on its way up as well: each push until the
// version that contains it has come.
//
// Threads: any thread may call any method at any time. Pieces have a lock each; clocks are atomic.
// Every change that a pull may wait for signals the server's EventCount. The first failure of the
// rule is kept, and every later push and pull returns it.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "ps/clock_vector.h"
#include "ps/event_count.h"
#include "ps/model_spec.h"
#include "ps/rules/rule.h"
#include "ps/shard.h"
#include "ps/snapshot.h"
#include "ps/upstream.h"

namespace dmlcomm::ps {

// Bounds on the clocks that a worker is ahead of the slowest one, as windows take memory; between
// them ModelOptions::window_bytes decides. Beyond it, its pushes wait. With one window less a
// worker could not push while another one's last push is on its way.
constexpr uint64_t kMinWindows = 2;
constexpr uint64_t kMaxWindows = 64;

struct Held {
  uint64_t clock = 0;
  bool is_new = false;  // the worker did not count before: others may have gone on without it
};

// Of those below a proxy.
struct PullCounts {
  uint64_t pulls = 0;
  uint64_t at_once = 0;  // the proxy's copy of the weights was new enough when they came
};

struct Rows {
  uint32_t space = 0;
  const int64_t* numbers = nullptr;  // of the table, all of one shard
  uint64_t count = 0;
};

struct ModelOptions {
  uint32_t model = 0;
  ModelSpec spec;
  std::vector<uint32_t> shards;  // that this server holds
  uint32_t num_expected = 0;     // workers
  std::shared_ptr<const Rule> rule;
  uint64_t checkpoint_every = 0;  // clocks; 0: never
  bool huge_pages = true;
  uint64_t window_bytes = UINT64_MAX;  // that windows may take, but for kMinWindows
  Upstream* upstream = nullptr;        // of a proxy's model; outlives it
  uint64_t base = 0;  // of a proxy's model: the weights that it gets contain all clocks before this
};

class Model : public std::enable_shared_from_this<Model> {
 public:
  Model(ModelOptions options, EventCount& events);

  const ModelSpec& spec() const { return options_.spec; }
  const ModelOptions& options() const { return options_; }
  // Null if the shard is not here.
  const Shard* shard(uint32_t number) const { return find(number); }

  // --- first values ---
  void set(uint32_t shard, size_t piece, const std::byte* wire);
  void seal();
  bool sealed() const { return sealed_.load(); }

  // --- clocks ---
  void tick(uint32_t worker, uint64_t clock);
  // The same of all workers of a proxy; none goes back.
  void tick_all(const std::map<uint32_t, uint64_t>& workers, uint64_t clock);
  // The worker takes part from `clock` on. Another incarnation counts its pushes anew.
  void attach(uint32_t worker, uint64_t clock, uint64_t incarnation);
  // The worker has left or is lost: its clock counts no more.
  void drop(uint32_t worker) { tick(worker, kGone); }
  // A worker that is about to attach counts from now on. Returns the clock that it begins at, which
  // no piece is beyond then.
  Held hold(uint32_t worker);
  const ClockVector& clocks() const { return clocks_; }
  // A proxy: no window goes up before this worker has closed it; unless it is here already.
  void expect(uint32_t worker);
  // All windows before this clock are closed.
  uint64_t min_clock() const;
  // All pieces contain all windows before this clock.
  uint64_t version() const;
  // No piece contains a window of this clock, or of a later one.
  uint64_t reached() const;
  // The tree of proxies has ended, and none of its connections is left: forgets what has come from
  // there and is in no version. These workers, with the clocks at which they were attached there,
  // repeat that.
  void forget_parts(const std::map<uint32_t, uint64_t>& workers);

  // --- pushes and pulls ---
  // Memory to receive any piece; the model outlives it.
  BufferPool::Buffer take_buffer() { return pool_.take(); }
  // Adds a worker's push. A repeated push is not added twice; a push of a clock that is over goes
  // to the first clock that is not. False: the worker is too far ahead; wait for an event and try
  // again. The model may keep the buffer.
  Result<bool> push(uint32_t shard, size_t piece, const Push& push, BufferPool::Buffer& wire);
  Result<bool> push_rows(uint32_t shard, const Push& push, const Rows& rows, const std::byte* wire);

  // Whether the piece contains all windows before `needed`. Then `*data` is the answer: `scratch`
  // (at least Piece::wire_bytes), or, with `in_place`, the weights themselves. If the worker asked
  // for all windows before its own clock, these do not change before it closes another clock.
  // Not in place, it also shows what has come here of clocks before `own_before`, if the model
  // does: see show_own_from().
  Result<bool> pull(uint32_t shard, size_t piece, uint64_t needed, bool in_place,
                    std::byte* scratch, const std::byte** data, uint64_t own_before = 0);
  Result<bool> pull_rows(uint32_t shard, uint64_t needed, const Rows& rows, std::byte* wire);
  bool can_send_in_place(const Piece& piece) const;
  // Whether pulls of all windows before `needed` wait for nobody any more.
  bool has_all(uint64_t needed) const;

  Status check_rows(uint32_t shard, const Rows& rows) const;

  // --- of a proxy ---
  // Weights are sums of pushes, so pulls may show those that are on their way up, by pieces that
  // contain all clocks before `clock`. Earlier ones may contain more than their version says, and
  // so what workers repeat. Of several calls the largest clock counts.
  void show_own_from(uint64_t clock);
  // Sends up what is complete.
  void send_up();
  // The piece after `clock`, as it was received; the model keeps the buffer.
  void take_answer(uint32_t shard, size_t piece, uint64_t clock, BufferPool::Buffer& wire);
  // Asks for the weights, once, unless they are here.
  void fetch_values();
  // A piece at the clock that Upstream::fetch() was given; take_values() when all are there.
  void take_value(uint32_t shard, size_t piece, uint64_t clock, const std::byte* wire);
  void take_values();
  // Elements of a piece as messages have them; not before the first values are complete here.
  void load(uint32_t shard, size_t piece, std::byte* wire);
  EventCount& events() { return events_; }
  // A pull has come that needs all windows before `needed`.
  void note_pull(uint64_t needed);
  PullCounts pull_counts() const { return {pulls_.load(), pulls_at_once_.load()}; }

  // --- checkpoints ---
  // The server stops. No piece goes beyond the clock after that of the first one; pushes that need
  // more, and pulls that need that much, wait. So workers end no clock that is not in the second of
  // two snapshots, other servers go no further either, and have one in common with this one if they
  // stop, too.
  void stop_clocks();
  // The complete snapshot, each once, or null.
  std::shared_ptr<Snapshot> take_snapshot();
  // Restores the weights and state of a snapshot, and seals; before any worker attaches. The
  // workers that it names are expected again.
  Status restore(const Snapshot& snapshot);

  // --- filling a server that comes back ---
  // Appends pieces from `first` on, until there are `limit` bytes; returns the next one.
  size_t copy(uint32_t shard, size_t first, size_t limit, std::vector<std::byte>* out);
  // Puts them in the place of what is here, before any worker uses the model.
  Status take_copy(uint32_t shard, const std::vector<std::byte>& bytes);
  // All pieces are here. These workers count, from these clocks on; seals.
  void end_fill(const std::map<uint32_t, uint64_t>& clocks);

  // --- with replicas: what may be on one copy alone of a worker that has gone ---
  // The numbers of the pushes that are here, to pieces from `first` on, until there are `limit`
  // bytes.
  std::vector<std::byte> known_pushes(uint32_t shard, uint32_t worker, size_t first, size_t limit);
  // As copy(), of the pushes to pieces from `first` on but for those that are `known`, as far as
  // that goes, and of the worker's clocks that are over; it has sent all that it ever will.
  Result<size_t> copy_pushes(uint32_t shard, uint32_t worker, const std::vector<std::byte>& known,
                             size_t first, size_t limit, std::vector<std::byte>* out);
  // Adds those that are not here. The worker still counts, so none of their clocks is over.
  Status take_pushes(uint32_t shard, uint32_t worker, const std::vector<std::byte>& bytes);
  // The other copy has its pushes with smaller sequence numbers.
  void forget_pushes(uint32_t worker, uint64_t unfinished);
  // The most that a piece has had: tells which of two copies has come further.
  uint64_t num_updates() const;

  size_t num_open_windows() const;
  // Of the buffers for pushes and windows, in use or not.
  size_t buffer_bytes() const { return pool_.held_bytes(); }

 private:
  Shard* find(uint32_t number) const;
  // Each with its lock: visit(Shard&, PieceState&).
  template <typename Visit>
  void each_piece(Visit visit) const {
    for (const auto& shard : shards_) {
      for (size_t i = 0; i < shard->pieces().size(); ++i) {
        PieceState& state = shard->state(i);
        std::lock_guard lock(state.mutex);
        visit(*shard, state);
      }
    }
  }
  Status failure() const;
  template <typename Wanted>
  void advance_all(Wanted wanted);
  void advance_ticked();
  Status keep_failure(const Status& status);
  std::shared_ptr<Snapshot> describe_snapshot(uint64_t clock) const;

  // Whether the other copy may need what a push has brought.
  bool keeps_elements() const { return spec().replicas > 0; }

  // All of these with the piece's lock.
  uint64_t closed_clock(const PieceState& state) const;
  // The worker pushes nothing to the piece before this clock any more; also of one that has gone.
  uint64_t closed_by(const PieceState& state, uint32_t worker) const;
  uint32_t num_closed(const PieceState& state, uint64_t clock) const;
  uint64_t window_clock(uint64_t clock) const;
  Status push_at_once(Shard& shard, PieceState& state, const Push& push, BufferPool::Buffer& wire);
  double scale_of(uint32_t num_pushes) const;
  // Whether a push of `clock` has to wait, where the slowest worker is at `open`. `in_order`: a
  // window keeps the pushes of all workers.
  bool is_far_ahead(uint64_t clock, uint64_t open, bool in_order);
  bool is_stopped(uint64_t clock) const { return clock >= stop_at_.load(); }
  Status advance(Shard& shard, PieceState& state, bool* moved, bool is_awaited = false);
  Status pass_up(Shard& shard, PieceState& state, bool is_awaited);
  void load_with_own(Shard& shard, const PieceState& state, uint64_t own_before, std::byte* wire);
  // Whether the push is new; at most once.
  Result<bool> take_note(PieceState& state, const Push& push, uint64_t clock);
  Result<bool> take_note_of_all(PieceState& state, const Push& push);
  void keep_elements(PieceState& state, const Push& push, KeptElements elements);
  uint64_t open_clock(const PieceState& state) const { return state.version + state.is_up; }
  Status apply(Shard& shard, PieceState& state, Window& window);
  Status update_piece(Shard& shard, PieceState& state, double learning_rate,
                      BufferPool::Buffer& gradient, double scale);
  Status update(Shard& shard, PieceState& state, double learning_rate, uint64_t begin,
                uint64_t count, const std::byte* gradient, double scale);
  // The piece has reached, or leaves, a clock at which a snapshot may be taken.
  void arrive(Shard& shard, PieceState& state);
  void leave(Shard& shard, PieceState& state);
  void keep(Shard& shard, PieceState& state, const std::shared_ptr<Snapshot>& snapshot);
  Status push_rows_of_piece(Shard& shard, PieceState& state, const Push& push, const Rows& rows,
                            const std::vector<uint64_t>& chosen, const std::byte* wire);
  Status get_rows_of_piece(Shard& shard, PieceState& state, uint64_t needed, const Rows& rows,
                           const std::vector<uint64_t>& chosen, std::byte* wire, bool* ready);

  const ModelOptions options_;
  EventCount& events_;
  BufferPool pool_;
  const std::vector<std::unique_ptr<Shard>> shards_;
  ClockVector clocks_;
  SnapshotKeeper snapshots_;
  std::atomic<bool> sealed_{false};
  std::atomic<uint64_t> stop_at_{kGone};  // no piece goes beyond this clock
  std::atomic<bool> is_fetching_{false};
  std::atomic<uint64_t> own_from_{kGone};              // see show_own_from(); kGone: never
  std::atomic<uint64_t> pulls_{0}, pulls_at_once_{0};  // see PullCounts
  std::atomic<bool> has_failed_{false};
  std::atomic<bool> has_held_up_{false};  // a worker that was far ahead
  // The piece that was behind all others, and its version then: as long as it has not moved, that
  // is version(). The mutex is locked before that of the piece.
  mutable std::mutex behind_mutex_;
  mutable const PieceState* behind_ = nullptr;
  mutable uint64_t behind_version_ = 0;
  mutable std::mutex failure_mutex_;
  Status failure_;  // guarded by failure_mutex_
};

}  // namespace dmlcomm::ps
