#include "engine/board.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "base/str_cat.h"
#include "kernels/reduce.h"
#include "topology/partition.h"

namespace dmlcomm::engine {
namespace {

using schedule::OpKind;

// All-reduces up to this size take one round, in which every rank adds everything up for itself: it
// spares the second wait, and costs N - 1 times the reading.
constexpr size_t kOneRoundBytes = 16 * 1024;

size_t largest_piece(const OpRequest& request) {
  const auto& counts = request.shape.counts;
  return *std::max_element(counts.begin(), counts.end()) * size_of(request.dtype);
}

}  // namespace

Board::Board(transport::Mesh& mesh, int rank, int num_ranks)
    : mesh_(mesh), rank_(rank), num_ranks_(num_ranks) {}

bool Board::takes(const OpRequest& request) const {
  if (!mesh_.all_share_memory()) return false;
  const size_t slot_bytes = mesh_.segment().slot_bytes();
  switch (request.shape.kind) {
    case OpKind::barrier: return true;
    case OpKind::all_reduce:
    case OpKind::reduce:
    case OpKind::broadcast: return request.info().count * size_of(request.dtype) <= slot_bytes;
    case OpKind::all_gather: return largest_piece(request) <= slot_bytes;
    case OpKind::reduce_scatter: return request.info().count * size_of(request.dtype) <= slot_bytes;
    default: return false;  // sizes that not every rank knows
  }
}

BoardRunner::BoardRunner(Board& board, const OpState& op)
    : board_(board), op_(op), request_(op.request()),
      two_rounds_(op.request().shape.kind == OpKind::all_reduce &&
                  op.request().output.bytes() > kOneRoundBytes) {}

Status BoardRunner::start() {
  for (int rank = 0; rank < board_.num_ranks_; ++rank) {
    if (rank != board_.rank_) board_.mesh_.link(rank);
  }
  bool moved;
  return advance(&moved);
}

Status BoardRunner::advance(bool* moved) {
  if (phase_ == Phase::connect && connected()) phase_ = Phase::enter;
  if (phase_ == Phase::enter && may_enter()) {
    enter();
    *moved = true;
  }
  if (phase_ == Phase::take) return take(moved);
  return Status();
}

bool BoardRunner::waits_for(int peer) const {
  if (phase_ == Phase::connect) return board_.mesh_.peer_segment(peer) == nullptr;
  if (phase_ == Phase::enter) return !published(peer, board_.round_);
  // A peer that has published may leave: its slot stays readable.
  return std::find(pending_.begin(), pending_.end(), peer) != pending_.end() &&
         !published(peer, round_);
}

bool BoardRunner::connected() const {
  for (int rank = 0; rank < board_.num_ranks_; ++rank) {
    if (rank != board_.rank_ && board_.mesh_.peer_segment(rank) == nullptr) return false;
  }
  return true;
}

bool BoardRunner::published(int rank, uint64_t round) const {
  if (rank == board_.rank_) return true;
  // Pairs with the release in enter(): the slot of that round is filled.
  return board_.mesh_.peer_segment(rank)->header().round.load(std::memory_order_acquire) >= round;
}

bool BoardRunner::may_enter() const {
  for (int rank = 0; rank < board_.num_ranks_; ++rank) {
    if (!published(rank, board_.round_)) return false;
  }
  return true;
}

void BoardRunner::enter() {
  round_ = ++board_.round_;
  if (round_of_op_ == 0) {
    if (two_rounds_ || request_.shape.kind == OpKind::reduce_scatter) {
      put_parts_of_others();
    } else {
      put_input();
    }
    if (request_.shape.kind == OpKind::all_gather) keep_own_part();
  }
  transport::shm::Header& header = board_.mesh_.segment().header();
  header.op[round_ % transport::shm::kNumSlots] = op_.info();
  header.round.store(round_, std::memory_order_release);
  for (int rank = 0; rank < board_.num_ranks_; ++rank) {
    if (rank == board_.rank_) continue;
    board_.mesh_.notify(rank);
    if (needs(rank)) pending_.push_back(rank);
  }
  phase_ = Phase::take;
  if (pending_.empty()) finish_round();
}

// Whether this rank waits for `rank` in this round.
bool BoardRunner::needs(int rank) const {
  const int root = static_cast<int>(request_.shape.root);
  switch (request_.shape.kind) {
    case OpKind::broadcast: return rank == root;
    case OpKind::reduce: return board_.rank_ == root;
    default: return true;
  }
}

bool BoardRunner::combines() const { return request_.reduces() && round_of_op_ == 0; }

Status BoardRunner::take(bool* moved) {
  for (size_t i = 0; i < pending_.size();) {
    const int rank = pending_[i];
    if (!published(rank, round_)) {
      ++i;
      continue;
    }
    DMLCOMM_RETURN_IF_ERROR(check(rank));
    if (!combines()) copy_from(rank);
    pending_.erase(pending_.begin() + static_cast<ptrdiff_t>(i));
    *moved = true;
  }
  if (pending_.empty()) {
    if (combines()) combine();
    finish_round();
  }
  return Status();
}

void BoardRunner::finish_round() {
  ++round_of_op_;
  phase_ = two_rounds_ && round_of_op_ == 1 ? Phase::enter : Phase::done;
  if (phase_ == Phase::enter) enter();  // every rank has published the round before
}

// The rank that published this round did so for the same operation.
Status BoardRunner::check(int rank) const {
  const transport::shm::Header& header = board_.mesh_.peer_segment(rank)->header();
  // A rank that is a round ahead has seen ours, and so agreed with us; its slot of this round stays.
  const transport::OpInfo& theirs = header.op[round_ % transport::shm::kNumSlots];
  if (theirs == op_.info()) return Status();
  return Status(StatusCode::mismatch,
                str_cat("ranks disagree about collective #", op_.sequence(), ": rank ",
                        board_.rank_, " called ", describe(op_.info()), ", rank ", rank, " called ",
                        describe(theirs), "; every rank must call the same operations in the same "
                        "order"));
}

// --- the data ---

std::byte* BoardRunner::own_slot() const { return board_.mesh_.segment().slot(round_); }

const std::byte* BoardRunner::slot_of(int rank) const {
  return rank == board_.rank_ ? own_slot() : board_.mesh_.peer_segment(rank)->slot(round_);
}

// What belongs to `rank`: an even cut of an all-reduce, a piece as the caller named it, or everything.
BoardRunner::Part BoardRunner::part_of(int rank) const {
  const size_t element = size_of(request_.dtype);
  const auto& counts = request_.shape.counts;
  const auto r = static_cast<size_t>(rank);
  if (request_.shape.kind == OpKind::reduce_scatter || request_.shape.kind == OpKind::all_gather) {
    const uint64_t before = std::accumulate(counts.begin(), counts.begin() + rank, uint64_t{0});
    return {before * element, counts[r] * element};
  }
  if (!two_rounds_) return {0, request_.output.bytes()};
  const topology::Partition cuts(counts[0], static_cast<uint32_t>(board_.num_ranks_),
                                 static_cast<uint32_t>(element));
  return {cuts.begin(static_cast<uint32_t>(rank)) * element,
          cuts.length(static_cast<uint32_t>(rank)) * element};
}

void BoardRunner::put_input() {
  const OpKind kind = request_.shape.kind;
  const bool is_root = board_.rank_ == static_cast<int>(request_.shape.root);
  if (kind == OpKind::barrier || (kind == OpKind::broadcast && !is_root) ||
      (kind == OpKind::reduce && is_root)) {
    return;
  }
  const bool in_place = kind == OpKind::all_reduce || kind == OpKind::broadcast;
  const BufferView& from = in_place ? request_.output : request_.input;
  if (from.bytes() > 0) std::memcpy(own_slot(), from.at(0, from.bytes()), from.bytes());
}

void BoardRunner::put_parts_of_others() {
  const bool scatters = request_.shape.kind == OpKind::reduce_scatter;
  const BufferView& from = scatters ? request_.input : request_.output;
  for (int rank = 0; rank < board_.num_ranks_; ++rank) {
    const Part part = part_of(rank);
    if (rank == board_.rank_ || part.bytes == 0) continue;
    std::memcpy(own_slot() + part.offset, from.at(part.offset, part.bytes), part.bytes);
  }
}

// An all-gather's own part goes straight from input to output, unless it is there already.
void BoardRunner::keep_own_part() {
  const Part part = part_of(board_.rank_);
  if (part.bytes == 0) return;
  std::byte* to = request_.output.at(part.offset, part.bytes);
  const std::byte* from = request_.input.at(0, part.bytes);
  if (to != from) std::memmove(to, from, part.bytes);
}

// Adds up in rank order: the own part, or everything.
void BoardRunner::combine() {
  const OpKind kind = request_.shape.kind;
  if (kind == OpKind::reduce && board_.rank_ != static_cast<int>(request_.shape.root)) return;
  const Part part = kind == OpKind::reduce ? Part{0, request_.output.bytes()}
                                           : part_of(board_.rank_);
  if (part.bytes == 0) return;
  const BufferView& own = kind == OpKind::all_reduce ? request_.output : request_.input;
  std::vector<const void*> sources;
  for (int rank = 0; rank < board_.num_ranks_; ++rank) {
    const bool is_own = rank == board_.rank_;
    sources.push_back(is_own ? own.at(part.offset, part.bytes) : slot_of(rank) + part.offset);
  }
  std::byte* result =
      request_.output.at(kind == OpKind::reduce_scatter ? 0 : part.offset, part.bytes);
  // The result of the first round of two goes to the slot of the second, where the others fetch it.
  std::byte* shared =
      two_rounds_ ? board_.mesh_.segment().slot(round_ + 1) + part.offset : result;
  const uint64_t divisor =
      request_.reduce_op == ReduceOp::avg ? static_cast<uint64_t>(board_.num_ranks_) : 1;
  kernels::reduce(shared, sources.data(), sources.size(), part.bytes / size_of(request_.dtype),
                  request_.dtype, request_.reduce_op, divisor);
  if (shared != result) std::memcpy(result, shared, part.bytes);
}

void BoardRunner::copy_from(int rank) {
  const OpKind kind = request_.shape.kind;
  if (kind == OpKind::barrier) return;
  const Part part = kind == OpKind::broadcast ? Part{0, request_.output.bytes()} : part_of(rank);
  if (part.bytes == 0) return;
  // An all-gather's slot holds the sender's part alone, the others everything.
  const std::byte* from = slot_of(rank) + (kind == OpKind::all_gather ? 0 : part.offset);
  std::memcpy(request_.output.at(part.offset, part.bytes), from, part.bytes);
}

}  // namespace dmlcomm::engine
