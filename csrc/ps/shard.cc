#include "ps/shard.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

#include "base/check.h"
#include "kernels/convert.h"
#include "kernels/reduce.h"

namespace dmlcomm::ps {
namespace {

// Fills `count` elements with a number, by converting it once and copying it.
void fill(std::byte* to, DType dtype, uint64_t count, double value) {
  const size_t bytes = size_of(dtype);
  if (value == 0.0) {
    std::memset(to, 0, count * bytes);
    return;
  }
  std::byte element[sizeof(double)];
  if (dtype == DType::f64) {
    std::memcpy(element, &value, sizeof(value));
  } else {
    DMLCOMM_CHECK(dtype == DType::f32);  // rules that keep state are of floating-point numbers
    const auto narrow = static_cast<float>(value);
    std::memcpy(element, &narrow, sizeof(narrow));
  }
  for (uint64_t i = 0; i < count; ++i) std::memcpy(to + i * bytes, element, bytes);
}

// Memory of this thread for converted elements.
std::byte* scratch(size_t bytes) {
  thread_local std::vector<std::byte> memory;
  if (memory.size() < bytes) memory.resize(bytes);
  return memory.data();
}

void add_up(std::byte* sum, const std::byte* more, uint64_t count, DType dtype) {
  const void* sources[] = {sum, more};
  kernels::reduce(sum, sources, 2, count, dtype, ReduceOp::sum, 1);
}

}  // namespace

Mark& PieceState::mark_of(uint32_t worker) {
  if (worker >= marks.size()) marks.resize(worker + 1);
  return marks[worker];
}

void PieceState::begin_anew(uint32_t worker, uint64_t closed) {
  Mark& mark = mark_of(worker);
  std::erase_if(before, [&](const Closed& one) { return one.closed <= version; });
  if (closed > std::max(mark.first, version)) before.push_back({mark.first, closed});
  mark.first = std::max(closed, version);  // at least, until it attaches
  mark.closed = std::min(mark.closed, version);
}

Shard::Shard(const ModelSpec& spec, uint32_t number, const Rule& rule, BufferPool& pool)
    : number_(number),
      num_servers_(spec.num_servers),
      spaces_(spec.spaces),
      pieces_(pieces_of(spec, number)),
      num_slots_(rule.num_slots()),
      data_(spec.spaces.size()),
      states_(std::make_unique<PieceState[]>(pieces_.size())) {
  for (uint32_t index = 0; index < spaces_.size(); ++index) {
    SpaceData& data = data_[index];
    const Space& space = spaces_[index];
    data.count = shard_count(space, number, num_servers_);
    for (size_t slot = 0; slot < num_slots_; ++slot) {
      data.slots.push_back(allocate_huge(array_bytes(index), pool.huge_pages()));
      fill(data.slots.back().get(), space.stored(), data.count, rule.first_value(slot));
    }
  }
  for (size_t i = 0; i < pieces_.size(); ++i) {
    states_[i].piece = pieces_[i];
    states_[i].index = i;
    states_[i].weights = pool.take();
    std::memset(states_[i].weights.get(), 0, pieces_[i].stored_bytes(spec));
    if (pieces_[i].begin == 0) data_[pieces_[i].space].first_piece = i;
  }
}

size_t Shard::array_bytes(uint32_t space) const {
  return data_[space].count * size_of(spaces_[space].stored());
}

std::byte* Shard::at(const PieceState& state, size_t slot, uint64_t begin) {
  const Piece& piece = state.piece;
  const size_t element_bytes = size_of(space(piece).stored());
  if (slot == 0) return state.weights.get() + begin * element_bytes;
  return data_[piece.space].slots[slot - 1].get() + (piece.begin + begin) * element_bytes;
}

const std::byte* Shard::stored(const Piece& piece, const std::byte* wire, uint64_t count) const {
  const Space& of = space(piece);
  if (of.wire == of.stored()) return wire;
  std::byte* converted = scratch(count * size_of(of.stored()));
  kernels::convert(converted, of.stored(), wire, of.wire, count);
  return converted;
}

BufferPool::Buffer Shard::take_stored(const Piece& piece, BufferPool::Buffer& wire,
                                      BufferPool& pool) const {
  const Space& of = space(piece);
  if (of.wire == of.stored()) return std::move(wire);
  BufferPool::Buffer converted = pool.take();
  kernels::convert(converted.get(), of.stored(), wire.get(), of.wire, piece.count);
  return converted;
}

void Shard::store(const PieceState& state, uint64_t begin, uint64_t count, const std::byte* wire) {
  const Space& of = space(state.piece);
  kernels::convert(at(state, 0, begin), of.stored(), wire, of.wire, count);
}

void Shard::load(const PieceState& state, uint64_t begin, uint64_t count, std::byte* wire) {
  const Space& of = space(state.piece);
  kernels::convert(wire, of.wire, at(state, 0, begin), of.stored(), count);
}

void Shard::load_with(const PieceState& state, std::vector<const void*> more, std::byte* wire,
                      BufferPool& pool) {
  const Space& of = space(state.piece);
  const bool converts = of.wire != of.stored();
  const BufferPool::Buffer sum = converts ? pool.take() : nullptr;
  std::byte* to = converts ? sum.get() : wire;
  more.insert(more.begin(), at(state, 0, 0));
  kernels::reduce(to, more.data(), more.size(), state.piece.count, of.stored(), ReduceOp::sum, 1);
  if (converts) kernels::convert(wire, of.wire, to, of.stored(), state.piece.count);
}

Window& Shard::window_of(PieceState& state, uint64_t clock, BufferPool& pool) {
  const auto it = std::find_if(state.windows.begin(), state.windows.end(),
                               [&](const Window& window) { return window.clock >= clock; });
  if (it != state.windows.end() && it->clock == clock) return *it;
  Window window;
  window.clock = clock;
  window.learning_rate = std::numeric_limits<double>::quiet_NaN();
  const Space& of = space(state.piece);
  if (of.sparse()) {
    window.rows.resize(state.piece.count / of.row_elements);
    window.sum = pool.take();
    std::memset(window.sum.get(), 0, state.piece.count * size_of(of.stored()));
  }
  return *state.windows.insert(it, std::move(window));
}

void Shard::add(const PieceState& state, Window& window, BufferPool::Buffer& wire,
                BufferPool& pool) {
  const Piece& piece = state.piece;
  ++window.num_pushes;
  if (window.sum == nullptr) {  // there may be parts
    window.sum = take_stored(piece, wire, pool);
  } else {
    const std::byte* more = stored(piece, wire.get(), piece.count);
    add_up(window.sum.get(), more, piece.count, space(piece).stored());
  }
}

Part& Shard::keep_part(const PieceState& state, Window& window, const Push& push,
                       BufferPool::Buffer& wire, BufferPool& pool) {
  window.num_pushes += push.num_pushes;
  const auto place =
      std::upper_bound(window.parts.begin(), window.parts.end(), push.worker,
                       [](uint32_t sender, const Part& part) { return sender < part.sender; });
  return *window.parts.insert(
      place, Part{push.worker, push.num_pushes, take_stored(state.piece, wire, pool)});
}

void Shard::forget_parts(PieceState& state, const std::map<uint32_t, uint64_t>& workers) {
  for (Window& window : state.windows) {
    for (const Part& part : window.parts) window.num_pushes -= part.num_pushes;
    window.parts.clear();
  }
  std::erase_if(state.windows, [](const Window& window) {
    return window.num_pushes == 0 && window.sum == nullptr;
  });
  for (const auto& [worker, first] : workers) {
    Mark& mark = state.mark_of(worker);
    mark.contained = std::max({mark.contained, state.version, first});
    mark.closed = mark.contained;
  }
}

void Shard::add_parts(const PieceState& state, Window& window, BufferPool& pool) {
  if (window.parts.empty()) return;
  std::vector<const void*> sources;
  if (window.sum != nullptr) sources.push_back(window.sum.get());
  for (const Part& part : window.parts) sources.push_back(part.data());
  if (window.sum == nullptr) window.sum = std::move(window.parts.front().elements);
  if (window.sum == nullptr) window.sum = pool.take();
  if (sources.size() > 1 || sources.front() != window.sum.get()) {
    kernels::reduce(window.sum.get(), sources.data(), sources.size(), state.piece.count,
                    space(state.piece).stored(), ReduceOp::sum, 1);
  }
  window.parts.clear();
}

void Shard::add_row(const PieceState& state, Window& window, uint64_t row, const std::byte* wire) {
  const Space& of = space(state.piece);
  const size_t elements = of.row_elements;
  std::byte* sum = window.sum.get() + row * elements * size_of(of.stored());
  add_up(sum, stored(state.piece, wire, elements), elements, of.stored());
  window.rows[row] = true;
}

bool Shard::holds_row(uint32_t space, int64_t row) const {
  return row >= 0 && static_cast<uint64_t>(row) < spaces_[space].num_rows() &&
         static_cast<uint64_t>(row) % num_servers_ == number_;
}

Shard::RowPlace Shard::place_of(uint32_t space, uint64_t local_row) const {
  const size_t first = data_[space].first_piece;
  const uint64_t rows_per_piece = pieces_[first].count / spaces_[space].row_elements;
  return {first + local_row / rows_per_piece, local_row % rows_per_piece};
}

size_t Shard::wire_row_bytes(uint32_t space) const {
  return spaces_[space].row_elements * size_of(spaces_[space].wire);
}

void Shard::attach(uint32_t worker, uint64_t clock, uint64_t incarnation) {
  for (size_t i = 0; i < pieces_.size(); ++i) {
    std::lock_guard lock(states_[i].mutex);
    Mark& mark = states_[i].mark_of(worker);
    mark.closed = std::min(mark.closed, clock);
    const uint64_t before = std::exchange(mark.incarnation, incarnation);
    if (before == incarnation) continue;
    mark.first = clock;
    mark.pushes.clear();
    if (before != 0) mark.contained = 0;  // else restored
  }
}

void Shard::set_contained(uint32_t worker, uint64_t clock) {
  for (size_t i = 0; i < pieces_.size(); ++i) {
    std::lock_guard lock(states_[i].mutex);
    states_[i].mark_of(worker).contained = clock;
  }
}

ShardSnapshot Shard::empty_snapshot() const {
  ShardSnapshot snapshot;
  snapshot.shard = number_;
  for (uint32_t space = 0; space < spaces_.size(); ++space) {
    for (size_t slot = 0; slot <= num_slots_; ++slot) {
      snapshot.arrays.emplace_back(array_bytes(space));
    }
  }
  snapshot.steps.resize(pieces_.size());
  snapshot.pushes.resize(pieces_.size());
  return snapshot;
}

void Shard::save(const PieceState& state, ShardSnapshot* snapshot) {
  const Piece& piece = state.piece;
  const size_t element = size_of(space(piece).stored());
  for (size_t slot = 0; slot <= num_slots_; ++slot) {
    std::vector<std::byte>& array = snapshot->arrays[piece.space * (num_slots_ + 1) + slot];
    std::memcpy(array.data() + piece.begin * element, at(state, slot, 0), piece.count * element);
  }
  snapshot->steps[state.index] = state.step;
  for (uint32_t worker = 0; worker < state.marks.size(); ++worker) {
    const Mark& mark = state.marks[worker];
    mark.pushes.for_each_in(state.version, [&](uint64_t sequence) {
      snapshot->pushes[state.index].push_back({worker, mark.incarnation, sequence});
    });
  }
}

Status Shard::restore(const ShardSnapshot& snapshot, uint64_t clock) {
  const size_t num_arrays = spaces_.size() * (num_slots_ + 1);
  if (snapshot.arrays.size() != num_arrays || snapshot.steps.size() != pieces_.size() ||
      snapshot.pushes.size() != pieces_.size()) {
    return Status(StatusCode::invalid_argument, "the checkpoint holds ", snapshot.arrays.size(),
                  " arrays and ", snapshot.steps.size(), " pieces of shard ", number_,
                  "; expected ", num_arrays, " and ", pieces_.size());
  }
  for (size_t i = 0; i < num_arrays; ++i) {
    const size_t expected = array_bytes(static_cast<uint32_t>(i / (num_slots_ + 1)));
    if (snapshot.arrays[i].size() != expected) {
      return Status(StatusCode::invalid_argument, "array ", i, " of shard ", number_, " has ",
                    snapshot.arrays[i].size(), " bytes in the checkpoint; expected ", expected);
    }
  }
  for (size_t i = 0; i < pieces_.size(); ++i) {
    const Piece& piece = pieces_[i];
    const size_t element = size_of(space(piece).stored());
    std::lock_guard lock(states_[i].mutex);
    for (size_t slot = 0; slot <= num_slots_; ++slot) {
      const std::vector<std::byte>& array = snapshot.arrays[piece.space * (num_slots_ + 1) + slot];
      std::memcpy(at(states_[i], slot, 0), array.data() + piece.begin * element,
                  piece.count * element);
    }
    states_[i].step = snapshot.steps[i];
    states_[i].version = clock;
    for (const AppliedPush& push : snapshot.pushes[i]) {
      Mark& mark = states_[i].mark_of(static_cast<uint32_t>(push.worker));
      mark.incarnation = push.incarnation;
      mark.pushes.take(push.sequence, 0, 0);
    }
  }
  return Status();
}

}  // namespace dmlcomm::ps
