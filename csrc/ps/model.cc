#include "ps/model.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

#include "base/exceptions.h"
#include "base/log.h"

namespace dmlcomm::ps {
namespace {

// As it is kept; no type takes more bytes on the wire.
size_t largest_piece(const ModelOptions& options) {
  size_t bytes = 1;
  for (uint32_t shard : options.shards) {
    for (const Piece& piece : pieces_of(options.spec, shard)) {
      bytes = std::max(bytes, piece.stored_bytes(options.spec));
    }
  }
  return bytes;
}

std::vector<std::unique_ptr<Shard>> make_shards(const ModelOptions& options, BufferPool& pool) {
  std::vector<std::unique_ptr<Shard>> shards;
  for (uint32_t number : options.shards) {
    shards.push_back(std::make_unique<Shard>(options.spec, number, *options.rule, pool));
  }
  return shards;
}

size_t count_pieces(const std::vector<std::unique_ptr<Shard>>& shards) {
  size_t pieces = 0;
  for (const auto& shard : shards) pieces += shard->pieces().size();
  return pieces;
}

// The rows of a push or pull by the piece they are in: numbers are places in Rows::numbers.
template <typename Visit>
Status for_each_piece(const Shard& shard, const Rows& rows, Visit visit) {
  std::vector<uint64_t> order(rows.count);
  for (uint64_t i = 0; i < rows.count; ++i) order[i] = i;
  const auto piece_of = [&](uint64_t i) {
    return shard.place_of(rows.space, shard.local_row(rows.numbers[i])).piece;
  };
  std::stable_sort(order.begin(), order.end(),
                   [&](uint64_t a, uint64_t b) { return piece_of(a) < piece_of(b); });
  std::vector<uint64_t> chosen;
  for (uint64_t i = 0; i < rows.count; i += chosen.size()) {
    chosen.clear();
    const size_t piece = piece_of(order[i]);
    for (uint64_t j = i; j < rows.count && piece_of(order[j]) == piece; ++j) {
      chosen.push_back(order[j]);
    }
    DMLCOMM_RETURN_IF_ERROR(visit(piece, chosen));
  }
  return Status();
}

}  // namespace

Model::Model(ModelOptions options, EventCount& events)
    : options_(std::move(options)),
      events_(events),
      pool_(largest_piece(options_), options_.huge_pages),
      shards_(make_shards(options_, pool_)),
      clocks_(options_.num_expected, 0),
      snapshots_(
          options_.checkpoint_every, count_pieces(shards_),
          [this](uint64_t clock) { return describe_snapshot(clock); },
          [this](Snapshot& snapshot) {
            for (const auto& shard : shards_) snapshot.shards.push_back(shard->empty_snapshot());
          }) {
  for (const auto& shard : shards_) {
    for (size_t i = 0; i < shard->pieces().size(); ++i) shard->state(i).version = options_.base;
  }
}

Shard* Model::find(uint32_t number) const {
  for (const auto& shard : shards_) {
    if (shard->number() == number) return shard.get();
  }
  return nullptr;
}

Status Model::failure() const {
  if (!has_failed_.load()) return Status();
  std::lock_guard lock(failure_mutex_);
  return failure_;
}

Status Model::keep_failure(const Status& status) {
  if (status.ok()) return status;
  {
    std::lock_guard lock(failure_mutex_);
    if (failure_.ok()) failure_ = status;
  }
  if (!has_failed_.exchange(true)) log_error("model '", spec().name, "': ", status.message());
  events_.signal();
  return failure();
}

// --- first values ---

void Model::set(uint32_t shard, size_t piece, const std::byte* wire) {
  Shard& of = *find(shard);
  PieceState& state = of.state(piece);
  std::lock_guard lock(state.mutex);
  // A provider of first values that was replaced may come late.
  if (sealed()) return;
  of.store(state, 0, state.piece.count, wire);
}

void Model::seal() {
  sealed_.store(true);
  events_.signal();
}

// --- clocks ---

// The next push or pull of a piece applies its windows that are complete now. So a pull sends one
// piece while it applies the next, and several pulls share the work. Only those of
// tables are applied here: their mean is over the workers that count now. And those of a proxy go
// up: others wait for them.
void Model::tick(uint32_t worker, uint64_t clock) {
  clocks_.set(worker, clock);
  advance_ticked();
}

void Model::tick_all(const std::map<uint32_t, uint64_t>& workers, uint64_t clock) {
  for (const auto& [worker, first] : workers) {
    if (clocks_.get(worker) < clock) clocks_.set(worker, clock);
  }
  advance_ticked();
}

void Model::advance_ticked() {
  advance_all([&](const Piece& piece) {
    return options_.upstream != nullptr || spec().spaces[piece.space].sparse();
  });
  events_.signal();
}

void Model::send_up() {
  advance_all([](const Piece&) { return true; });
}

template <typename Wanted>
void Model::advance_all(Wanted wanted) {
  for (const auto& shard : shards_) {
    for (size_t i = 0; i < shard->pieces().size(); ++i) {
      if (!wanted(shard->pieces()[i])) continue;
      PieceState& state = shard->state(i);
      std::lock_guard lock(state.mutex);
      bool moved = false;
      (void)keep_failure(without_exceptions([&] { return advance(*shard, state, &moved); }));
    }
  }
}

void Model::attach(uint32_t worker, uint64_t clock, uint64_t incarnation) {
  for (const auto& shard : shards_) shard->attach(worker, clock, incarnation);
  tick(worker, clock);
  if (options_.upstream == nullptr) return;
  // Windows that have gone up lack this worker, and the next ones have it: it counts from now on.
  uint64_t first = clock;
  each_piece([&](Shard&, PieceState& state) { first = std::max(first, open_clock(state)); });
  options_.upstream->attach(options_.model, worker, first, incarnation);
}

void Model::expect(uint32_t worker) {
  if (clocks_.get(worker) == kGone) clocks_.set(worker, 0);
}

uint64_t Model::min_clock() const {
  return clocks_.min([](uint32_t) { return uint64_t{0}; });
}

// Asked with every push by a proxy, so it does not look at all pieces each time. Versions only
// grow.
uint64_t Model::version() const {
  const auto version_of = [](const PieceState& state) {
    std::lock_guard lock(state.mutex);
    return state.version;
  };
  std::lock_guard lock(behind_mutex_);
  if (behind_ != nullptr && version_of(*behind_) == behind_version_) return behind_version_;
  behind_ = nullptr;
  for (const auto& shard : shards_) {
    for (size_t i = 0; i < shard->pieces().size(); ++i) {
      const uint64_t version = version_of(shard->state(i));
      if (behind_ != nullptr && version >= behind_version_) continue;
      behind_ = &shard->state(i);
      behind_version_ = version;
    }
  }
  return behind_ == nullptr ? 0 : behind_version_;
}

uint64_t Model::reached() const {
  uint64_t clock = 0;
  each_piece([&](Shard&, PieceState& state) { clock = std::max(clock, state.version); });
  return clock;
}

Held Model::hold(uint32_t worker) {
  uint64_t clock = clocks_.get(worker);
  if (clock != kGone) return {clock, false};
  clock = min_clock();
  const uint64_t reached = clocks_.reached(worker);
  clocks_.set(worker, clock);
  // A thread that takes a piece's lock after this sees the worker: the piece does not go on.
  each_piece([&](Shard&, PieceState& state) {
    clock = std::max(clock, state.version);
    state.begin_anew(worker, std::max(state.closed_by(worker), reached));
  });
  clocks_.set(worker, clock);
  events_.signal();
  return {clock, true};
}

// Between its two changes of the clocks a piece goes by what it has noted of each worker itself,
// and that goes together with the sums.
void Model::forget_parts(const std::map<uint32_t, uint64_t>& workers) {
  std::map<uint32_t, uint64_t> counting;
  for (const auto& [worker, first] : workers) {
    if (clocks_.get(worker) == kGone) continue;
    counting.emplace(worker, first);
    clocks_.set(worker, 0);
  }
  std::map<uint32_t, uint64_t> clocks;
  each_piece([&](Shard& shard, PieceState& state) {
    shard.forget_parts(state, counting);
    for (const auto& [worker, first] : counting) {
      const uint64_t closed = state.closed_by(worker);
      const auto [it, is_first] = clocks.emplace(worker, closed);
      if (!is_first) it->second = std::min(it->second, closed);
    }
  });
  for (const auto& [worker, clock] : clocks) clocks_.set(worker, clock);
  events_.signal();
}

uint64_t Model::closed_clock(const PieceState& state) const {
  return clocks_.min([&](uint32_t worker) { return state.closed_by(worker); });
}

uint64_t Model::closed_by(const PieceState& state, uint32_t worker) const {
  return std::max(state.closed_by(worker), clocks_.reached(worker));
}

// How many workers have closed this clock, also those that have gone since, and come again: the
// same number on both copies, whenever they go on.
uint32_t Model::num_closed(const PieceState& state, uint64_t clock) const {
  const auto known = std::max(clocks_.num_known(), static_cast<uint32_t>(state.marks.size()));
  auto num = static_cast<uint32_t>(
      std::count_if(state.before.begin(), state.before.end(),
                    [&](const Closed& closed) { return closed.contains(clock); }));
  for (uint32_t worker = 0; worker < known; ++worker) {
    num += Closed{state.first_of(worker), closed_by(state, worker)}.contains(clock);
  }
  return num;
}

// --- pushes ---

// The last clock whose version lacks a push that goes to `clock`. A push that is applied at once is
// in all.
uint64_t Model::window_clock(uint64_t clock) const {
  return spec().apply == Apply::at_clock ? clock : 0;
}

// By the clocks alone, so nothing has to be counted where windows are made and go: each clock has
// at most one window of every piece, in buffers of the largest piece.
bool Model::is_far_ahead(uint64_t clock, uint64_t open, bool in_order) {
  if (spec().apply != Apply::at_clock || clock < open + kMinWindows) return false;
  const uint64_t parts = in_order ? std::max(1u, clocks_.num_counting()) : 1;
  const uint64_t clock_bytes = pool_.bytes() * count_pieces(shards_) * parts;
  const uint64_t limit = std::clamp(options_.window_bytes / std::max<uint64_t>(1, clock_bytes),
                                    kMinWindows, kMaxWindows);
  if (clock < open + limit) return false;
  if (!has_held_up_.exchange(true)) {
    log_warning("model '", spec().name, "': a worker is ", clock - open,
                " clocks ahead of the slowest one, and its pushes wait: windows of ", limit,
                " clocks at most, of ", clock_bytes, " bytes each, stay in memory");
  }
  return true;
}

// An exception, as where there is no memory, may have left a piece half-way: it ends the model.
Result<bool> Model::push(uint32_t shard, size_t piece, const Push& push,
                         BufferPool::Buffer& wire) try {
  DMLCOMM_RETURN_IF_ERROR(failure());
  Shard& of = *find(shard);
  PieceState& state = of.state(piece);
  std::unique_lock lock(state.mutex);
  bool moved = false;
  DMLCOMM_RETURN_IF_ERROR(keep_failure(advance(of, state, &moved)));
  const uint64_t clock = std::max(push.clock, open_clock(state));
  // So replicas have the same bits, and proxies in every run.
  const bool in_order = push.merged != nullptr || options_.upstream != nullptr || keeps_elements();
  if (!push.is_of_copy && (is_stopped(clock) || is_far_ahead(clock, state.version, in_order)) &&
      !state.mark_of(push.worker).pushes.contains(push.sequence)) {
    return false;
  }
  const Result<bool> noted = take_note(state, push, window_clock(clock));
  if (!noted.ok()) return noted.status();
  const bool is_new = *noted;
  Status status;
  const bool at_once =
      spec().apply == Apply::at_push || (!keeps_elements() && state.windows.empty() &&
                                         clock == state.version && closed_clock(state) > clock);
  if (is_new && at_once && options_.upstream == nullptr) {
    status = push_at_once(of, state, push, wire);
    moved |= spec().apply == Apply::at_clock;
  } else if (is_new) {
    Window& window = of.window_of(state, clock, pool_);
    if (in_order) {
      Part& part = of.keep_part(state, window, push, wire, pool_);
      if (keeps_elements()) {
        part.kept = std::move(part.elements);
        keep_elements(state, push, {push.learning_rate, part.kept, {}, {}});
      }
    } else {
      of.add(state, window, wire, pool_);
    }
    window.take_rate(push);
  }
  if (status.ok()) status = advance(of, state, &moved, push.is_awaited);
  lock.unlock();
  DMLCOMM_RETURN_IF_ERROR(keep_failure(status));
  if (moved) events_.signal();
  return true;
} catch (const std::exception& error) {
  return keep_failure(status_of(error));
}

Result<bool> Model::take_note(PieceState& state, const Push& push, uint64_t clock) {
  if (push.merged != nullptr) return take_note_of_all(state, push);
  Mark& mark = state.mark_of(push.worker);
  if (push.closes) mark.closed = std::max(mark.closed, push.clock + 1);
  const bool is_contained =
      spec().apply == Apply::at_clock && push.clock < std::max(mark.contained, options_.base);
  return mark.pushes.take(push.sequence, push.unfinished, clock) && !is_contained;
}

void Model::keep_elements(PieceState& state, const Push& push, KeptElements elements) {
  state.mark_of(push.worker).pushes.keep(std::move(elements));
}

// All pushes of a proxy's workers of one clock come as one: either all of them are here or none.
Result<bool> Model::take_note_of_all(PieceState& state, const Push& push) {
  size_t num_there = 0;
  size_t num_contained = 0;
  for (const auto& [worker, first] : *push.merged) {
    if (first > push.clock) continue;
    Mark& mark = state.mark_of(worker);
    ++num_there;
    num_contained += std::max(mark.closed, mark.contained) > push.clock;
    mark.closed = std::max(mark.closed, push.clock + 1);
  }
  if (push.num_pushes == 0) return false;
  if (num_contained > 0 && num_contained < num_there) {
    return Status(StatusCode::protocol_error, "a sum of ", push.num_pushes, " pushes of clock ",
                  push.clock, " to piece ", state.index, " of model '", spec().name,
                  "' has those of ", num_contained, " of ", num_there,
                  " workers again; it cannot be divided");
  }
  return num_contained == 0 && push.clock >= options_.base;
}

// Without a window: every push is an update, or this one is all that was missing of its clock.
Status Model::push_at_once(Shard& shard, PieceState& state, const Push& push,
                           BufferPool::Buffer& wire) {
  BufferPool::Buffer gradient = shard.take_stored(state.piece, wire, pool_);
  if (keeps_elements()) {  // the update may take the gradient
    std::shared_ptr<std::byte[]> kept = pool_.take();
    std::memcpy(kept.get(), gradient.get(), state.piece.stored_bytes(spec()));
    keep_elements(state, push, {push.learning_rate, std::move(kept), {}, {}});
  }
  if (spec().apply == Apply::at_clock) leave(shard, state);
  ++state.step;
  const double scale = scale_of(push.num_pushes);
  DMLCOMM_RETURN_IF_ERROR(update_piece(shard, state, push.learning_rate, gradient, scale));
  if (spec().apply == Apply::at_clock) {
    ++state.version;
    arrive(shard, state);
  }
  return Status();
}

Result<bool> Model::push_rows(uint32_t shard, const Push& push, const Rows& rows,
                              const std::byte* wire) try {
  DMLCOMM_RETURN_IF_ERROR(failure());
  Shard& of = *find(shard);
  const uint64_t open = min_clock();
  const bool waits =
      is_stopped(std::max(push.clock, open)) || is_far_ahead(push.clock, open, false);
  if (waits && !push.is_of_copy) return false;
  const Status status =
      for_each_piece(of, rows, [&](size_t piece, const std::vector<uint64_t>& chosen) {
        return push_rows_of_piece(of, of.state(piece), push, rows, chosen, wire);
      });
  DMLCOMM_RETURN_IF_ERROR(keep_failure(status));
  return true;
} catch (const std::exception& error) {
  return keep_failure(status_of(error));
}

Status Model::push_rows_of_piece(Shard& shard, PieceState& state, const Push& push,
                                 const Rows& rows, const std::vector<uint64_t>& chosen,
                                 const std::byte* wire) {
  const size_t row_bytes = shard.wire_row_bytes(rows.space);
  std::lock_guard lock(state.mutex);
  const uint64_t clock = std::max(push.clock, state.version);
  Mark& mark = state.mark_of(push.worker);
  if (!mark.pushes.take(push.sequence, push.unfinished, window_clock(clock))) return Status();
  if (keeps_elements()) {
    KeptElements kept{push.learning_rate, nullptr, {}, {}};
    for (uint64_t i : chosen) {
      kept.rows.push_back(rows.numbers[i]);
      kept.row_values.insert(kept.row_values.end(), wire + i * row_bytes,
                             wire + (i + 1) * row_bytes);
    }
    keep_elements(state, push, std::move(kept));
  }
  Window& window = shard.window_of(state, clock, pool_);
  ++window.num_pushes;
  window.take_rate(push);
  for (uint64_t i : chosen) {
    const auto place = shard.place_of(rows.space, shard.local_row(rows.numbers[i]));
    shard.add_row(state, window, place.row, wire + i * row_bytes);
  }
  if (spec().apply == Apply::at_push) {
    const Status status = apply(shard, state, window);
    std::erase_if(state.windows, [&](const Window& w) { return &w == &window; });
    return status;
  }
  bool moved = false;
  DMLCOMM_RETURN_IF_ERROR(advance(shard, state, &moved));
  if (moved) events_.signal();
  return Status();
}

// --- updates ---

// Goes through the clocks that every worker has closed: applies their windows, and keeps what a
// snapshot wants. A piece whose update has failed stays where it was.
Status Model::advance(Shard& shard, PieceState& state, bool* moved, bool is_awaited) {
  if (options_.upstream != nullptr) return pass_up(shard, state, is_awaited);
  if (!sealed() || state.has_failed) return Status();
  const uint64_t closed = std::min(closed_clock(state), stop_at_.load());
  if (snapshots_.is_filling()) arrive(shard, state);
  while (state.version < closed) {
    *moved = true;
    leave(shard, state);
    const bool has_window = !state.windows.empty() && state.windows.front().clock < closed;
    const uint64_t until = has_window ? state.windows.front().clock : closed;
    if (until > state.version) {
      state.version = snapshots_.next_stop(state.version, until);
      arrive(shard, state);
      continue;
    }
    Window window = std::move(state.windows.front());
    state.windows.pop_front();
    DMLCOMM_RETURN_IF_ERROR(apply(shard, state, window));
    ++state.version;
    arrive(shard, state);
  }
  return Status();
}

Status Model::apply(Shard& shard, PieceState& state, Window& window) {
  ++state.step;
  shard.add_parts(state, window, pool_);
  const Space& space = spec().spaces[state.piece.space];
  const std::byte* sum = window.sum.get();
  if (!space.sparse()) {
    return update_piece(shard, state, window.learning_rate, window.sum,
                        scale_of(window.num_pushes));
  }
  // Every worker has rows of its own: the mean is over the workers, as if each had sent all rows.
  const double scale = scale_of(std::max(1u, num_closed(state, window.clock)));
  const uint64_t row_bytes = space.row_elements * size_of(space.stored());
  for (uint64_t row = 0; row < window.rows.size(); ++row) {
    if (!window.rows[row]) continue;
    DMLCOMM_RETURN_IF_ERROR(update(shard, state, window.learning_rate, row * space.row_elements,
                                   space.row_elements, sum + row * row_bytes, scale));
  }
  return Status();
}

double Model::scale_of(uint32_t num_pushes) const {
  const bool is_mean = spec().combine == Combine::mean && spec().apply == Apply::at_clock;
  return is_mean ? 1.0 / num_pushes : 1.0;
}

// If the rule ignores the old weights the gradient's memory becomes the weights'.
Status Model::update_piece(Shard& shard, PieceState& state, double learning_rate,
                           BufferPool::Buffer& gradient, double scale) {
  const bool replaces = options_.rule->replaces();
  if (replaces) std::swap(state.weights, gradient);
  const std::byte* from = replaces ? state.weights.get() : gradient.get();
  const Status status = update(shard, state, learning_rate, 0, state.piece.count, from, scale);
  if (replaces && !status.ok()) std::swap(state.weights, gradient);
  return status;
}

Status Model::update(Shard& shard, PieceState& state, double learning_rate, uint64_t begin,
                     uint64_t count, const std::byte* gradient, double scale) {
  std::vector<std::byte*> slots;
  for (size_t slot = 1; slot <= shard.num_slots(); ++slot) {
    slots.push_back(shard.at(state, slot, begin));
  }
  UpdateRange range;
  range.dtype = spec().spaces[state.piece.space].stored();
  range.weights = shard.at(state, 0, begin);
  range.gradient = gradient;
  range.slots = slots.data();
  range.count = count;
  range.scale = scale;
  range.step = state.step;
  range.learning_rate = learning_rate;
  Status status = options_.rule->apply(range);
  state.has_failed |= !status.ok();
  return status;
}

void Model::arrive(Shard& shard, PieceState& state) {
  if (snapshots_.is_at(state.version) && sealed()) keep(shard, state, snapshots_.at(state.version));
}

void Model::leave(Shard& shard, PieceState& state) {
  if (snapshots_.is_at(state.version)) keep(shard, state, snapshots_.leave(state.version));
}

void Model::keep(Shard& shard, PieceState& state, const std::shared_ptr<Snapshot>& snapshot) {
  if (snapshot == nullptr || state.kept == state.version) return;
  state.kept = state.version;
  for (ShardSnapshot& part : snapshot->shards) {
    if (part.shard == shard.number()) shard.save(state, &part);
  }
  if (snapshots_.done(snapshot)) events_.signal();
}

// --- pulls ---

bool Model::can_send_in_place(const Piece& piece) const {
  const Space& space = spec().spaces[piece.space];
  return spec().apply == Apply::at_clock && space.wire == space.stored();
}

Result<bool> Model::pull(uint32_t shard, size_t piece, uint64_t needed, bool in_place,
                         std::byte* scratch, const std::byte** data, uint64_t own_before) try {
  DMLCOMM_RETURN_IF_ERROR(failure());
  if (!sealed()) {
    fetch_values();
    return false;
  }
  Shard& of = *find(shard);
  PieceState& state = of.state(piece);
  std::lock_guard lock(state.mutex);
  bool moved = false;
  DMLCOMM_RETURN_IF_ERROR(keep_failure(advance(of, state, &moved)));
  if (state.version < needed || is_stopped(needed)) return false;
  *data = in_place ? of.at(state, 0, 0) : scratch;
  if (!in_place) load_with_own(of, state, own_before, scratch);
  return true;
} catch (const std::exception& error) {
  return keep_failure(status_of(error));
}

// Windows of a proxy wait for its parent as well.
bool Model::has_all(uint64_t needed) const {
  if (!sealed()) return false;
  return needed == 0 || (options_.upstream == nullptr && min_clock() >= needed);
}

Result<bool> Model::pull_rows(uint32_t shard, uint64_t needed, const Rows& rows,
                              std::byte* wire) try {
  DMLCOMM_RETURN_IF_ERROR(failure());
  if (!sealed()) return false;
  Shard& of = *find(shard);
  bool all_ready = true;
  const Status status =
      for_each_piece(of, rows, [&](size_t piece, const std::vector<uint64_t>& chosen) {
        bool ready = false;
        DMLCOMM_RETURN_IF_ERROR(
            get_rows_of_piece(of, of.state(piece), needed, rows, chosen, wire, &ready));
        all_ready &= ready;
        return Status();
      });
  DMLCOMM_RETURN_IF_ERROR(keep_failure(status));
  return all_ready;
} catch (const std::exception& error) {
  return keep_failure(status_of(error));
}

Status Model::get_rows_of_piece(Shard& shard, PieceState& state, uint64_t needed, const Rows& rows,
                                const std::vector<uint64_t>& chosen, std::byte* wire, bool* ready) {
  const size_t row_bytes = shard.wire_row_bytes(rows.space);
  const size_t elements = shard.row_elements(state.piece);
  std::lock_guard lock(state.mutex);
  bool moved = false;
  DMLCOMM_RETURN_IF_ERROR(advance(shard, state, &moved));
  *ready = state.version >= needed && !is_stopped(needed);
  if (!*ready) return Status();
  for (uint64_t i : chosen) {
    const auto place = shard.place_of(rows.space, shard.local_row(rows.numbers[i]));
    shard.load(state, place.row * elements, elements, wire + i * row_bytes);
  }
  return Status();
}

Status Model::check_rows(uint32_t shard, const Rows& rows) const {
  const Shard* of = find(shard);
  if (of == nullptr || rows.space >= spec().spaces.size() || !spec().spaces[rows.space].sparse()) {
    return Status(StatusCode::protocol_error, "rows of space ", rows.space, " in shard ", shard,
                  " of model '", spec().name, "': there is no such table here");
  }
  for (uint64_t i = 0; i < rows.count; ++i) {
    if (of->holds_row(rows.space, rows.numbers[i])) continue;
    return Status(StatusCode::invalid_argument, "row ", rows.numbers[i], " is not in shard ", shard,
                  " of model '", spec().name, "', whose table has ",
                  spec().spaces[rows.space].num_rows(), " rows");
  }
  return Status();
}

// --- checkpoints ---

// It also names workers that have left since they closed the clock: a job that begins anew has them
// again.
std::shared_ptr<Snapshot> Model::describe_snapshot(uint64_t clock) const {
  auto snapshot = std::make_shared<Snapshot>();
  snapshot->model = options_.model;
  snapshot->clock = clock;
  for (uint32_t worker = 0; worker < clocks_.num_known(); ++worker) {
    const bool counts = clocks_.get(worker) != kGone;
    if (counts || clocks_.reached(worker) >= clock) snapshot->workers.push_back(worker);
  }
  return snapshot;
}

void Model::stop_clocks() {
  if (!sealed()) return;
  stop_at_.store(0);  // so that no piece moves meanwhile
  const uint64_t first = reached();
  snapshots_.take_all_from(first);
  stop_at_.store(first + 1);
  advance_all([](const Piece&) { return true; });
  events_.signal();
}

std::shared_ptr<Snapshot> Model::take_snapshot() {
  // If all have left nobody pushes or pulls, which would apply the last windows.
  const bool is_due = clocks_.num_counting() == 0 && snapshots_.is_due(min_clock());
  if (is_due || snapshots_.is_filling()) advance_all([](const Piece&) { return true; });
  return snapshots_.take();
}

Status Model::restore(const Snapshot& snapshot) {
  for (const auto& shard : shards_) {
    const auto part = std::find_if(snapshot.shards.begin(), snapshot.shards.end(),
                                   [&](const auto& s) { return s.shard == shard->number(); });
    if (part == snapshot.shards.end()) {
      return Status(StatusCode::invalid_argument, "the checkpoint has no shard ", shard->number());
    }
    DMLCOMM_RETURN_IF_ERROR(shard->restore(*part, snapshot.clock));
  }
  for (uint32_t worker = 0; worker < clocks_.num_known(); ++worker) clocks_.set(worker, kGone);
  for (uint32_t worker : snapshot.workers) {
    clocks_.set(worker, snapshot.clock);
    for (const auto& shard : shards_) shard->set_contained(worker, snapshot.clock);
  }
  clocks_.raise_highest(snapshot.clock);
  snapshots_.restored(snapshot.clock);
  seal();
  return Status();
}

size_t Model::num_open_windows() const {
  size_t windows = 0;
  each_piece([&](Shard&, PieceState& state) { windows += state.windows.size(); });
  return windows;
}

}  // namespace dmlcomm::ps
