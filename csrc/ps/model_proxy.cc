// Model, the part of proxies: windows go up, and answers and values come down.
#include <cstring>
#include <limits>
#include <utility>

#include "kernels/convert.h"
#include "ps/model.h"

namespace dmlcomm::ps {

void Model::show_own_from(uint64_t clock) {
  uint64_t before = own_from_.load();
  while ((before == kGone || before < clock) && !own_from_.compare_exchange_weak(before, clock)) {
  }
}

// One window of a piece is on its way at a time: its answer is what the workers below continue
// from.
Status Model::pass_up(Shard& shard, PieceState& state, bool is_awaited) {
  if (!sealed() || state.is_up || !options_.upstream->has_started()) return Status();
  if (state.version >= closed_clock(state)) return Status();
  Window window;
  window.learning_rate = std::numeric_limits<double>::quiet_NaN();
  if (!state.windows.empty() && state.windows.front().clock == state.version) {
    window = std::move(state.windows.front());
    state.windows.pop_front();
    shard.add_parts(state, window, pool_);
  }
  const Space& space = spec().spaces[state.piece.space];
  if (window.sum == nullptr) {
    window.sum = pool_.take();
    std::memset(window.sum.get(), 0, state.piece.count * size_of(space.stored()));
  }
  std::shared_ptr<std::byte[]> sum = std::move(window.sum);
  if (window.num_pushes > 0 && own_from_.load() != kGone) state.up = sum;
  if (space.wire != space.stored()) {
    BufferPool::Buffer wire = pool_.take();
    kernels::convert(wire.get(), space.wire, sum.get(), space.stored(), state.piece.count);
    sum = std::move(wire);
  }
  state.is_up = true;
  options_.upstream->forward({shared_from_this(), shard.number(), state.index, state.version,
                              window.num_pushes, window.learning_rate, std::move(sum), pool_.take(),
                              is_awaited});
  return Status();
}

void Model::take_answer(uint32_t shard, size_t piece, uint64_t clock, BufferPool::Buffer& wire) {
  Shard& of = *find(shard);
  PieceState& state = of.state(piece);
  {
    std::lock_guard lock(state.mutex);
    const Space& space = spec().spaces[state.piece.space];
    if (space.wire == space.stored()) {
      std::swap(state.weights, wire);
    } else {
      of.store(state, 0, state.piece.count, wire.get());
    }
    state.version = clock + 1;
    state.is_up = false;
    state.up = nullptr;
    (void)pass_up(of, state, false);
  }
  events_.signal();
}

void Model::fetch_values() {
  if (options_.upstream == nullptr || sealed() || is_fetching_.exchange(true)) return;
  for (uint32_t shard : options_.shards) {
    options_.upstream->fetch(shared_from_this(), shard, options_.base);
  }
}

void Model::take_value(uint32_t shard, size_t piece, uint64_t clock, const std::byte* wire) {
  Shard& of = *find(shard);
  PieceState& state = of.state(piece);
  std::lock_guard lock(state.mutex);
  if (sealed()) return;  // a worker of this host was to provide them, and has
  of.store(state, 0, state.piece.count, wire);
  state.version = clock;
}

void Model::take_values() {
  seal();
  send_up();
}

void Model::note_pull(uint64_t needed) {
  pulls_.fetch_add(1);
  if (sealed() && version() >= needed) pulls_at_once_.fetch_add(1);
}

void Model::load(uint32_t shard, size_t piece, std::byte* wire) {
  Shard& of = *find(shard);
  PieceState& state = of.state(piece);
  std::lock_guard lock(state.mutex);
  of.load(state, 0, state.piece.count, wire);
}

void Model::load_with_own(Shard& shard, const PieceState& state, uint64_t own_before,
                          std::byte* wire) {
  std::vector<const void*> more;
  if (state.version < own_before && state.version >= own_from_.load()) {
    if (state.up != nullptr) more.push_back(state.up.get());
    for (const Window& window : state.windows) {
      if (window.clock >= own_before) break;
      for (const Part& part : window.parts) more.push_back(part.data());
    }
  }
  if (more.empty()) {
    shard.load(state, 0, state.piece.count, wire);
  } else {
    shard.load_with(state, std::move(more), wire, pool_);
  }
}

}  // namespace dmlcomm::ps
