// Model::copy() and its counterparts: the pieces of a shard, as bytes, from the server that holds
// the other copy.
//
// A piece goes with its windows and with the numbers of the pushes that may be repeated. So it is
// copied while pushes come in: of those that reach both servers, the copy has some already, and
// they are recognised where they come again. Both servers run the same version; integers are
// little-endian.
//
// Also Model::copy_pushes() and its counterparts: what each of two servers has of a worker that has
// gone, and the other one may lack.
#include <cstring>
#include <type_traits>
#include <utility>

#include "kernels/convert.h"
#include "ps/model.h"

namespace dmlcomm::ps {
namespace {

using Bytes = std::vector<std::byte>;

template <typename T>
void put(Bytes* out, const T& value) {
  static_assert(std::is_trivially_copyable_v<T>);
  const auto* bytes = reinterpret_cast<const std::byte*>(&value);
  out->insert(out->end(), bytes, bytes + sizeof(T));
}

void put_bytes(Bytes* out, const std::byte* bytes, size_t count) {
  out->insert(out->end(), bytes, bytes + count);
}

// Takes values from bytes; what is not there is zero, and `ok()` is false from then on.
class Reader {
 public:
  explicit Reader(const Bytes& bytes) : next_(bytes.data()), end_(bytes.data() + bytes.size()) {}

  template <typename T>
  T take() {
    T value{};
    take_bytes(reinterpret_cast<std::byte*>(&value), sizeof(T));
    return value;
  }
  void take_bytes(std::byte* to, size_t count) {
    ok_ &= count <= static_cast<size_t>(end_ - next_);
    if (!ok_) return;
    std::memcpy(to, next_, count);
    next_ += count;
  }
  // Of things that take a byte at least.
  size_t take_count() {
    const auto count = take<uint64_t>();
    ok_ &= count <= static_cast<size_t>(end_ - next_);
    return ok_ ? count : 0;
  }
  bool ok() const { return ok_; }
  bool at_end() const { return next_ == end_; }

 private:
  const std::byte* next_;
  const std::byte* end_;
  bool ok_ = true;
};

void put_numbers(Bytes* out, const RecentPushes& pushes) {
  put(out, pushes.unfinished());
  put(out, uint64_t{pushes.size()});
  pushes.for_each([&](uint64_t sequence, uint64_t clock) {
    put(out, sequence);
    put(out, clock);
  });
}

RecentPushes take_numbers(Reader* in) {
  RecentPushes pushes;
  const auto unfinished = in->take<uint64_t>();
  for (size_t left = in->take_count(); left > 0 && in->ok(); --left) {
    const auto sequence = in->take<uint64_t>();
    pushes.take(sequence, unfinished, in->take<uint64_t>());
  }
  pushes.forget(unfinished);
  return pushes;
}

// closed_by(worker): see Model::closed_by().
template <typename ClosedBy>
void put_marks(Bytes* out, const PieceState& state, ClosedBy closed_by) {
  put(out, uint64_t{state.marks.size()});
  for (uint32_t worker = 0; worker < state.marks.size(); ++worker) {
    const Mark& mark = state.marks[worker];
    put(out, mark.incarnation);
    put(out, mark.first);
    put(out, uint64_t{closed_by(worker)});
    put(out, mark.contained);
    put_numbers(out, mark.pushes);
  }
  put(out, uint64_t{state.before.size()});
  for (const Closed& one : state.before) put(out, one);
}

void take_marks(Reader* in, PieceState* state) {
  state->marks.clear();
  const size_t count = std::min(in->take_count(), size_t{kMaxWorkers});
  for (size_t worker = 0; worker < count; ++worker) {
    Mark& mark = state->mark_of(static_cast<uint32_t>(worker));
    mark.incarnation = in->take<uint64_t>();
    mark.first = in->take<uint64_t>();
    mark.closed = in->take<uint64_t>();
    mark.contained = in->take<uint64_t>();
    mark.pushes = take_numbers(in);
  }
  state->before.resize(in->take_count());
  for (Closed& one : state->before) one = in->take<Closed>();
}

void put_window(Bytes* out, const Window& window, size_t bytes) {
  put(out, window.clock);
  put(out, window.num_pushes);
  put(out, window.learning_rate);
  put(out, window.rate_sender);
  put(out, uint64_t{window.parts.size()});
  for (const Part& part : window.parts) {
    put(out, part.sender);
    put(out, part.num_pushes);
    put_bytes(out, part.data(), bytes);
  }
  put(out, uint8_t{window.sum != nullptr});
  if (window.sum != nullptr) put_bytes(out, window.sum.get(), bytes);
  put(out, uint64_t{window.rows.size()});
  for (const bool row : window.rows) put(out, uint8_t{row});
}

Window take_window(Reader* in, size_t bytes, BufferPool& pool) {
  Window window;
  window.clock = in->take<uint64_t>();
  window.num_pushes = in->take<uint32_t>();
  window.learning_rate = in->take<double>();
  window.rate_sender = in->take<uint32_t>();
  const auto take_elements = [&] {
    BufferPool::Buffer elements = pool.take();
    in->take_bytes(elements.get(), bytes);
    return elements;
  };
  for (size_t left = in->take_count(); left > 0 && in->ok(); --left) {
    const auto sender = in->take<uint32_t>();
    const auto num_pushes = in->take<uint32_t>();
    window.parts.push_back({sender, num_pushes, take_elements()});
  }
  if (in->take<uint8_t>() != 0) window.sum = take_elements();
  window.rows.resize(in->take_count());
  for (size_t row = 0; row < window.rows.size(); ++row) window.rows[row] = in->take<uint8_t>() != 0;
  return window;
}

template <typename ClosedBy>
void put_piece(Bytes* out, Shard& shard, const PieceState& state, size_t bytes,
               ClosedBy closed_by) {
  put(out, uint64_t{state.index});
  put(out, state.version);
  put(out, state.step);
  put(out, uint8_t{state.has_failed});
  for (size_t slot = 0; slot <= shard.num_slots(); ++slot) {
    put_bytes(out, shard.at(state, slot, 0), bytes);
  }
  put_marks(out, state, closed_by);
  put(out, uint64_t{state.windows.size()});
  for (const Window& window : state.windows) put_window(out, window, bytes);
}

void take_piece(Reader* in, Shard& shard, PieceState* state, size_t bytes, BufferPool& pool) {
  state->version = in->take<uint64_t>();
  state->step = in->take<uint64_t>();
  state->has_failed = in->take<uint8_t>() != 0;
  for (size_t slot = 0; slot <= shard.num_slots(); ++slot) {
    in->take_bytes(shard.at(*state, slot, 0), bytes);
  }
  take_marks(in, state);
  state->windows.clear();
  for (size_t left = in->take_count(); left > 0 && in->ok(); --left) {
    state->windows.push_back(take_window(in, bytes, pool));
  }
}

void put_push(Bytes* out, const ModelSpec& spec, const PieceState& state, uint64_t sequence,
              uint64_t clock, const KeptElements& kept) {
  put(out, sequence);
  put(out, clock);
  put(out, kept.learning_rate);
  const Space& space = spec.spaces[state.piece.space];
  if (space.sparse()) {
    put(out, uint64_t{kept.rows.size()});
    for (const int64_t row : kept.rows) put(out, row);
    put_bytes(out, kept.row_values.data(), kept.row_values.size());
    return;
  }
  const size_t begin = out->size();
  out->resize(begin + state.piece.wire_bytes(spec));
  kernels::convert(out->data() + begin, space.wire, kept.dense.get(), space.stored(),
                   state.piece.count);
}

Status take_push(Reader* in, Model& model, uint32_t shard, size_t piece, uint32_t worker) {
  Push one{.worker = worker, .is_of_copy = true};
  one.sequence = in->take<uint64_t>();
  one.clock = in->take<uint64_t>();
  one.learning_rate = in->take<double>();
  const Shard& of = *model.shard(shard);
  const uint32_t space = of.pieces()[piece].space;
  if (!model.spec().spaces[space].sparse()) {
    BufferPool::Buffer wire = model.take_buffer();
    in->take_bytes(wire.get(), of.pieces()[piece].wire_bytes(model.spec()));
    return in->ok() ? model.push(shard, piece, one, wire).status() : Status();
  }
  std::vector<int64_t> numbers(in->take_count());
  for (int64_t& number : numbers) number = in->take<int64_t>();
  Bytes values(numbers.size() * of.wire_row_bytes(space));
  in->take_bytes(values.data(), values.size());
  if (!in->ok()) return Status();
  const Rows rows{space, numbers.data(), numbers.size()};
  DMLCOMM_RETURN_IF_ERROR(model.check_rows(shard, rows));
  return model.push_rows(shard, one, rows, values.data()).status();
}

}  // namespace

size_t Model::copy(uint32_t shard, size_t first, size_t limit, std::vector<std::byte>* out) {
  Shard& of = *find(shard);
  size_t piece = first;
  for (; piece < of.pieces().size() && (piece == first || out->size() < limit); ++piece) {
    const PieceState& state = of.state(piece);
    std::lock_guard lock(state.mutex);
    put_piece(out, of, state, state.piece.stored_bytes(spec()),
              [&](uint32_t worker) { return closed_by(state, worker); });
  }
  return piece;
}

Status Model::take_copy(uint32_t shard, const std::vector<std::byte>& bytes) {
  Shard& of = *find(shard);
  Reader in(bytes);
  while (in.ok() && !in.at_end()) {
    const auto piece = in.take<uint64_t>();
    if (piece >= of.pieces().size()) break;
    PieceState& state = of.state(piece);
    std::lock_guard lock(state.mutex);
    take_piece(&in, of, &state, state.piece.stored_bytes(spec()), pool_);
  }
  if (in.ok() && in.at_end()) return Status();
  return Status(StatusCode::protocol_error, "a copy of shard ", shard, " of model '", spec().name,
                "' does not fit; do all servers have the same dmlcomm and the same --rule?");
}

void Model::end_fill(const std::map<uint32_t, uint64_t>& clocks) {
  uint64_t highest = 0;
  each_piece([&](Shard&, PieceState& state) { highest = std::max(highest, state.version); });
  for (uint32_t worker = 0; worker < clocks_.num_known(); ++worker) clocks_.set(worker, kGone);
  for (const auto& [worker, clock] : clocks) clocks_.set(worker, clock);
  clocks_.raise_highest(highest);
  snapshots_.restored(highest);
  seal();
}

Bytes Model::known_pushes(uint32_t shard, uint32_t worker, size_t first, size_t limit) {
  Shard& of = *find(shard);
  Bytes known;
  size_t piece = first;
  for (; piece < of.pieces().size() && (piece == first || known.size() < limit); ++piece) {
    PieceState& state = of.state(piece);
    std::lock_guard lock(state.mutex);
    put_numbers(&known, state.mark_of(worker).pushes);
  }
  return known;
}

Result<size_t> Model::copy_pushes(uint32_t shard, uint32_t worker, const Bytes& known, size_t first,
                                  size_t limit, Bytes* out) {
  Shard& of = *find(shard);
  Reader in(known);
  size_t piece = first;
  const auto goes_on = [&] { return in.ok() && !in.at_end() && piece < of.pieces().size(); };
  for (; goes_on() && (piece == first || out->size() < limit); ++piece) {
    const RecentPushes there = take_numbers(&in);
    PieceState& state = of.state(piece);
    std::lock_guard lock(state.mutex);
    Bytes lacking;
    uint64_t num_lacking = 0;
    state.mark_of(worker).pushes.for_each_kept(
        [&](uint64_t sequence, uint64_t clock, const KeptElements& kept) {
          if (there.contains(sequence)) return;
          ++num_lacking;
          put_push(&lacking, spec(), state, sequence, clock, kept);
        });
    put(out, uint64_t{state.index});
    put(out, closed_by(state, worker));
    put(out, num_lacking);
    put_bytes(out, lacking.data(), lacking.size());
  }
  if (in.ok()) return piece;
  return Status(StatusCode::protocol_error, "the numbers of pushes to shard ", shard, " of model '",
                spec().name, "' do not fit; do all servers have the same dmlcomm?");
}

// The worker itself might have sent them: push() recognises those that are here. A model that has
// failed, as its rule has, takes none, and its workers are told why.
Status Model::take_pushes(uint32_t shard, uint32_t worker, const Bytes& bytes) {
  if (has_failed_.load()) return Status();
  Shard& of = *find(shard);
  Reader in(bytes);
  while (in.ok() && !in.at_end()) {
    const auto piece = in.take<uint64_t>();
    const auto closed = in.take<uint64_t>();
    size_t left = in.take_count();
    if (piece >= of.pieces().size()) break;
    for (; left > 0 && in.ok(); --left) {
      DMLCOMM_RETURN_IF_ERROR(take_push(&in, *this, shard, piece, worker));
    }
    if (!in.ok()) break;
    PieceState& state = of.state(piece);
    std::lock_guard lock(state.mutex);
    Mark& mark = state.mark_of(worker);
    mark.closed = std::max(mark.closed, closed);
  }
  if (in.ok() && in.at_end()) return Status();
  return Status(StatusCode::protocol_error, "pushes of worker ", worker, " to shard ", shard,
                " of model '", spec().name, "' do not fit; do all servers have the same dmlcomm?");
}

void Model::forget_pushes(uint32_t worker, uint64_t unfinished) {
  if (!keeps_elements()) return;
  each_piece([&](Shard&, PieceState& state) { state.mark_of(worker).pushes.forget(unfinished); });
}

uint64_t Model::num_updates() const {
  uint64_t most = 0;
  each_piece([&](Shard&, PieceState& state) { most = std::max(most, state.step); });
  return most;
}

}  // namespace dmlcomm::ps
