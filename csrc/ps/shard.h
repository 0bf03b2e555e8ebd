// Shard: the memory of one server's part of a model, piece by piece.
//
// Model decides when a window is applied; Shard knows the places of weights and state, and adds up
// pushes.
#pragma once

#include <algorithm>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "memory/buffer_pool.h"
#include "ps/model_spec.h"
#include "ps/rules/rule.h"
#include "ps/snapshot.h"

namespace dmlcomm::ps {

// What a push has brought to a piece: the server with the other copy of the piece may not have it
// when the worker dies.
struct KeptElements {
  double learning_rate = 0;
  std::shared_ptr<std::byte[]> dense;  // of the stored type
  std::vector<int64_t> rows;           // or rows of a table, by their numbers there
  std::vector<std::byte> row_values;   // as messages have them
};

// The pushes of a worker that it may repeat, in any order, because they are not acknowledged.
class RecentPushes {
 public:
  // True for a new push, and only once; versions after `clock` contain it. The worker repeats no
  // push before `unfinished`.
  bool take(uint64_t sequence, uint64_t unfinished, uint64_t clock) {
    forget(unfinished);
    if (contains(sequence)) return false;
    pushes_.push_back({sequence, clock, std::nullopt});
    return true;
  }
  // Of the push that was taken last.
  void keep(KeptElements elements) { pushes_.back().kept = std::move(elements); }
  // Those before `unfinished`, with their elements.
  void forget(uint64_t unfinished) {
    unfinished_ = std::max(unfinished_, unfinished);
    std::erase_if(pushes_, [&](const One& one) { return one.sequence < unfinished_; });
  }
  // Also one that the worker repeats no more: another server may still have it, see KeptElements.
  bool contains(uint64_t sequence) const {
    return sequence < unfinished_ ||
           std::any_of(pushes_.begin(), pushes_.end(),
                       [&](const One& one) { return one.sequence == sequence; });
  }
  void clear() {
    pushes_.clear();
    unfinished_ = 0;
  }
  size_t size() const { return pushes_.size(); }
  uint64_t unfinished() const { return unfinished_; }
  // visit(sequence, clock)
  template <typename Visit>
  void for_each(Visit visit) const {
    for (const One& one : pushes_) visit(one.sequence, one.clock);
  }
  // visit(sequence, clock, elements), in the order in which they came
  template <typename Visit>
  void for_each_kept(Visit visit) const {
    for (const One& one : pushes_) {
      if (one.kept.has_value()) visit(one.sequence, one.clock, *one.kept);
    }
  }
  // The sequence numbers of those that version `version` contains.
  template <typename Visit>
  void for_each_in(uint64_t version, Visit visit) const {
    for (const One& one : pushes_) {
      if (one.clock < version) visit(one.sequence);
    }
  }

 private:
  struct One {
    uint64_t sequence;
    uint64_t clock;
    std::optional<KeptElements> kept;
  };
  std::vector<One> pushes_;
  uint64_t unfinished_ = 0;  // the largest that was told
};

// The head of a push.
struct Push {
  uint32_t worker = 0;  // the sender
  uint64_t clock = 0;
  uint64_t sequence = 0;
  uint64_t unfinished = 0;  // the worker repeats no push with a smaller sequence number
  bool closes = false;
  double learning_rate = 0;  // NaN: the rule's
  // Of a proxy: the workers below it with the clocks from which on they are there. Those that are
  // there at this clock end it. And how many pushes it is the sum of.
  const std::map<uint32_t, uint64_t>* merged = nullptr;
  uint32_t num_pushes = 1;
  bool is_awaited = false;  // see Forwarded::is_awaited
  // From the server with the other copy, which had memory for it: it does not wait.
  bool is_of_copy = false;
};

// A worker's pushes to a piece.
struct Mark {
  uint64_t incarnation = 0;  // of the worker whose pushes these are
  RecentPushes pushes;
  uint64_t first = 0;      // the clock at which it has begun
  uint64_t closed = 0;     // it pushes nothing before this clock any more
  uint64_t contained = 0;  // what it pushes before this clock is repeated, and is in the version
};

// Clocks that a worker has closed: those before `closed`, from `first` on.
struct Closed {
  uint64_t first = 0;
  uint64_t closed = 0;
  bool contains(uint64_t clock) const { return first <= clock && clock < closed; }
};

// A push that is added up in the order of the senders, whatever the order of arrival.
struct Part {
  uint32_t sender = 0;
  uint32_t num_pushes = 0;
  BufferPool::Buffer elements;                  // of the stored type
  std::shared_ptr<std::byte[]> kept = nullptr;  // in their place: see KeptElements
  const std::byte* data() const { return kept != nullptr ? kept.get() : elements.get(); }
};

// The pushes of one clock to one piece, added up until they are applied.
struct Window {
  uint64_t clock = 0;
  uint32_t num_pushes = 0;
  std::vector<Part> parts;   // by sender; not in `sum` yet
  double learning_rate = 0;  // of the largest sender that named one, its last; NaN: none did
  uint32_t rate_sender = 0;
  BufferPool::Buffer sum;  // of the stored type
  std::vector<bool> rows;  // sparse: those that have been pushed

  // Whatever the order of arrival, the rate is the same.
  void take_rate(const Push& push) {
    if (push.learning_rate != push.learning_rate || push.worker < rate_sender) return;
    learning_rate = push.learning_rate;
    rate_sender = push.worker;
  }
};

struct PieceState {
  Piece piece;
  size_t index = 0;  // in the shard
  mutable std::mutex mutex;

  // Guarded by mutex.
  BufferPool::Buffer weights;  // slot 0
  uint64_t version = 0;        // all windows before it have been applied
  uint64_t step = 0;           // updates so far
  bool has_failed = false;     // the last of them did
  bool is_up = false;          // of a proxy: the window of `version` went up, and has no answer yet
  // Its sum, of the stored type, where pulls show it; until the answer has come.
  std::shared_ptr<const std::byte[]> up;
  uint64_t kept = 0;           // the clock of the last snapshot that it is in
  std::deque<Window> windows;  // by clock, none before version
  std::vector<Mark> marks;     // by worker
  std::vector<Closed> before;  // after version, of workers that have begun anew since
  Mark& mark_of(uint32_t worker);
  // The worker is about to attach; as it was before, it had closed all clocks before `closed`.
  void begin_anew(uint32_t worker, uint64_t closed);
  uint64_t closed_by(uint32_t worker) const {
    return worker < marks.size() ? marks[worker].closed : 0;
  }
  uint64_t first_of(uint32_t worker) const {
    return worker < marks.size() ? marks[worker].first : 0;
  }
};

class Shard {
 public:
  // The weights lie in buffers of the pool, which outlives the shard.
  Shard(const ModelSpec& spec, uint32_t number, const Rule& rule, BufferPool& pool);

  uint32_t number() const { return number_; }
  const std::vector<Piece>& pieces() const { return pieces_; }
  PieceState& state(size_t piece) { return states_[piece]; }
  const PieceState& state(size_t piece) const { return states_[piece]; }

  // Element `begin` of a piece: of the weights (slot 0), or of the rule's state (slot 1, ...).
  std::byte* at(const PieceState& state, size_t slot, uint64_t begin);
  size_t num_slots() const { return num_slots_; }  // of the rule

  // --- conversions between messages and the stored type ---
  // The elements of a whole piece in the stored type: in the memory of `wire` itself, or converted.
  BufferPool::Buffer take_stored(const Piece& piece, BufferPool::Buffer& wire,
                                 BufferPool& pool) const;
  void store(const PieceState& state, uint64_t begin, uint64_t count, const std::byte* wire);
  void load(const PieceState& state, uint64_t begin, uint64_t count, std::byte* wire);
  // The weights of a whole piece, and what is added to them here: arrays of the stored type.
  void load_with(const PieceState& state, std::vector<const void*> more, std::byte* wire,
                 BufferPool& pool);

  // --- windows; with the piece's lock ---
  // The window of `clock`, made if there is none.
  Window& window_of(PieceState& state, uint64_t clock, BufferPool& pool);
  // Keeps the memory of `wire` if it can become the sum.
  void add(const PieceState& state, Window& window, BufferPool::Buffer& wire, BufferPool& pool);
  // The same for pushes that are added in the order of their senders, by add_parts(). The one that
  // is returned is of `push`.
  Part& keep_part(const PieceState& state, Window& window, const Push& push,
                  BufferPool::Buffer& wire, BufferPool& pool);
  void add_parts(const PieceState& state, Window& window, BufferPool& pool);
  // Takes back what proxies have added, and the clocks of their workers: as if these had pushed
  // nothing since the version that the piece has.
  void forget_parts(PieceState& state, const std::map<uint32_t, uint64_t>& workers);
  void add_row(const PieceState& state, Window& window, uint64_t row_of_piece,
               const std::byte* wire);

  // --- rows of sparse tables ---
  uint64_t local_row(int64_t row) const { return static_cast<uint64_t>(row) / num_servers_; }
  bool holds_row(uint32_t space, int64_t row) const;
  // The piece of a row, by its number within this shard, and its place there.
  struct RowPlace {
    size_t piece;
    uint64_t row;
  };
  RowPlace place_of(uint32_t space, uint64_t local_row) const;
  size_t row_elements(const Piece& piece) const { return space(piece).row_elements; }
  size_t wire_row_bytes(uint32_t space) const;

  // The worker begins at `clock`, also if it had closed later ones; pushes of another incarnation
  // are no repetitions.
  void attach(uint32_t worker, uint64_t clock, uint64_t incarnation);

  // --- snapshots ---
  ShardSnapshot empty_snapshot() const;
  // With the piece's lock.
  void save(const PieceState& state, ShardSnapshot* snapshot);
  Status restore(const ShardSnapshot& snapshot, uint64_t clock);
  // What the worker pushes before this clock is repeated, and was in the snapshot.
  void set_contained(uint32_t worker, uint64_t clock);

 private:
  struct SpaceData {
    uint64_t count = 0;
    std::vector<HugeMemory> slots;  // 1, 2, ... of the rule
    size_t first_piece = 0;
  };
  const Space& space(const Piece& piece) const { return spaces_[piece.space]; }
  // As take_stored(), for some elements, converted in memory of this thread.
  const std::byte* stored(const Piece& piece, const std::byte* wire, uint64_t count) const;
  size_t array_bytes(uint32_t space) const;

  const uint32_t number_;
  const uint32_t num_servers_;
  const std::vector<Space> spaces_;
  const std::vector<Piece> pieces_;
  const size_t num_slots_;
  std::vector<SpaceData> data_;
  std::unique_ptr<PieceState[]> states_;
};

}  // namespace dmlcomm::ps
