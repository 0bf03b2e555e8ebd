#include "engine/board.h"

#include <sched.h>

#include <algorithm>
#include <cstring>
#include <numeric>

#include "base/clock.h"
#include "base/str_cat.h"
#include "engine/segments.h"
#include "kernels/reduce.h"
#include "topology/partition.h"

namespace dmlcomm::engine {
namespace {

using schedule::OpKind;

// All-reduces up to this size take one round, in which every rank adds everything up for itself: it
// spares the second wait, and costs N - 1 times the reading.
constexpr size_t kOneRoundBytes = 8 * 1024;

// A rank that gives up waits so long for one that is writing to its memory: far longer than a
// segment takes, unless that process has been stopped in the middle.
constexpr int64_t kStopNs = 100 * kNsPerMs;

size_t largest_piece(const OpRequest& request) {
  const auto& counts = request.shape.counts;
  return *std::max_element(counts.begin(), counts.end()) * size_of(request.dtype);
}

}  // namespace

Board::Board(transport::Mesh& mesh, int rank, int num_ranks)
    : mesh_(mesh), rank_(rank), num_ranks_(num_ranks) {}

void Board::greet(bool* moved) {
  if (round_ == 0) {
    bool reaches_all = true;
    for (int rank = 0; rank < num_ranks_; ++rank) {
      if (rank != rank_) mesh_.link(rank);
    }
    if (!connected()) return;
    for (int rank = 0; rank < num_ranks_; ++rank) {
      reaches_all = reaches_all && (rank == rank_ || mesh_.link(rank).channel()->can_pull());
    }
    mesh_.segment().header().reaches_all = reaches_all;
    publish();
    *moved = true;
  }
  if (!all_published(1)) return;
  direct_ = mesh_.segment().header().reaches_all;
  for (int rank = 0; rank < num_ranks_; ++rank) {
    if (rank != rank_) direct_ = direct_ && mesh_.peer_segment(rank)->header().reaches_all;
  }
  ready_ = true;
  *moved = true;
}

bool Board::greeting_waits_for(int peer) const {
  return !ready_ && (mesh_.peer_segment(peer) == nullptr || !published(peer, 1));
}

bool Board::connected() const {
  for (int rank = 0; rank < num_ranks_; ++rank) {
    if (rank != rank_ && mesh_.peer_segment(rank) == nullptr) return false;
  }
  return true;
}

bool Board::published(int rank, uint64_t round) const {
  if (rank == rank_) return true;
  // Pairs with the release in publish(): the slot of that round is filled.
  return mesh_.peer_segment(rank)->header().round.load(std::memory_order_acquire) >= round;
}

bool Board::all_published(uint64_t round) const {
  for (int rank = 0; rank < num_ranks_; ++rank) {
    if (!published(rank, round)) return false;
  }
  return true;
}

// Enters the next round.
void Board::publish() {
  mesh_.segment().header().round.store(++round_, std::memory_order_release);
  for (int rank = 0; rank < num_ranks_; ++rank) {
    if (rank != rank_) mesh_.notify(rank);
  }
}

bool Board::goes_direct(const OpRequest& request) const {
  return direct_ && request.shape.kind == OpKind::all_reduce &&
         request.output.bytes() > kOneRoundBytes &&
         mesh_.segment().slot_bytes() >= sizeof(uint64_t);
}

bool Board::takes(const OpRequest& request) const {
  if (!ready_) return false;
  if (goes_direct(request)) return true;
  const size_t slot_bytes = mesh_.segment().slot_bytes();
  switch (request.shape.kind) {
    case OpKind::barrier: return true;
    case OpKind::all_reduce:
    case OpKind::reduce:
    case OpKind::reduce_scatter:
    case OpKind::broadcast: return request.info().count * size_of(request.dtype) <= slot_bytes;
    case OpKind::all_gather: return largest_piece(request) <= slot_bytes;
    default: return false;  // sizes that not every rank knows
  }
}

BoardRunner::BoardRunner(Board& board, MemoryPool& pool, const OpState& op)
    : Runner(info_of(op, kBoardAlgorithm)),
      board_(board),
      pool_(pool),
      op_(op),
      request_(op.request()),
      way_(board.goes_direct(op.request()) ? Way::direct
           : op.request().shape.kind == OpKind::all_reduce &&
                   op.request().output.bytes() > kOneRoundBytes
               ? Way::two_rounds
               : Way::one_round) {}

BoardRunner::~BoardRunner() { pool_.give_back(std::move(staging_)); }

Status BoardRunner::start() {
  bool moved;
  return advance(&moved);
}

Status BoardRunner::advance(bool* moved) {
  if (phase_ == Phase::enter && board_.all_published(board_.round_)) {
    enter();
    *moved = true;
  }
  if (phase_ == Phase::work) return work(moved);
  if (phase_ == Phase::take) return take(moved);
  return Status();
}

bool BoardRunner::waits_for(int peer) const {
  if (phase_ == Phase::enter) return !board_.published(peer, board_.round_);
  // Its tensor is read and written until all is done.
  if (way_ == Way::direct && phase_ == Phase::work) return true;
  // A peer that has published may leave: its slot stays readable.
  return std::find(pending_.begin(), pending_.end(), peer) != pending_.end() &&
         !board_.published(peer, round_);
}

void BoardRunner::stop() {
  if (way_ != Way::direct) return;
  board_.mesh_.segment().header().accepts_round.store(0);
  const int64_t give_up = now_ns() + kStopNs;
  for (int rank = 0; rank < board_.num_ranks_; ++rank) {
    if (rank == board_.rank_) continue;
    const auto& writing_to = board_.mesh_.peer_segment(rank)->header().writing_to;
    while (writing_to.load() == static_cast<uint32_t>(board_.rank_) + 1 && now_ns() < give_up) {
      sched_yield();
    }
  }
}

void BoardRunner::enter() {
  round_ = board_.round_ + 1;
  transport::shm::Header& header = board_.mesh_.segment().header();
  header.op[round_ % transport::shm::kNumSlots] = info();
  if (round_of_op_ == 0) put();
  board_.publish();
  for (int rank = 0; rank < board_.num_ranks_; ++rank) {
    if (rank != board_.rank_) pending_.push_back(rank);
  }
  phase_ = Phase::take;
  if (pending_.empty()) finish_round();
}

void BoardRunner::put() {
  if (way_ == Way::direct) {
    const std::byte* tensor = request_.output.at(0, request_.output.bytes());
    const auto address = reinterpret_cast<uint64_t>(tensor);
    std::memcpy(own_slot(), &address, sizeof(address));
    first_round_ = round_;
    board_.mesh_.segment().header().accepts_round.store(round_);
  } else if (way_ == Way::two_rounds || request_.shape.kind == OpKind::reduce_scatter) {
    put_parts_of_others();
  } else {
    put_input();
  }
  if (request_.shape.kind == OpKind::all_gather) keep_own_part();
}

bool BoardRunner::combines() const { return request_.reduces() && round_of_op_ == 0; }

Status BoardRunner::take(bool* moved) {
  for (size_t i = 0; i < pending_.size();) {
    const int rank = pending_[i];
    if (!board_.published(rank, round_)) {
      ++i;
      continue;
    }
    DMLCOMM_RETURN_IF_ERROR(check(rank));
    if (!combines()) copy_from(rank);
    pending_.erase(pending_.begin() + static_cast<ptrdiff_t>(i));
    *moved = true;
  }
  if (!pending_.empty()) return Status();
  if (way_ == Way::direct && round_of_op_ == 0) {
    prepare_work();
    phase_ = Phase::work;
    return Status();
  }
  if (combines()) combine();
  finish_round();
  return Status();
}

void BoardRunner::finish_round() {
  ++round_of_op_;
  if (way_ != Way::one_round && round_of_op_ == 1) {
    enter();  // every rank has published the round before
    return;
  }
  if (way_ == Way::direct) board_.mesh_.segment().header().accepts_round.store(0);
  phase_ = Phase::done;
}

// The rank that published this round did so for the same operation.
Status BoardRunner::check(int rank) const {
  const transport::shm::Header& header = board_.mesh_.peer_segment(rank)->header();
  // A rank that is a round ahead has seen ours, and so agreed with us; its slot of this round
  // stays.
  const transport::OpInfo& theirs = header.op[round_ % transport::shm::kNumSlots];
  if (theirs == info()) return Status();
  return Status(
      StatusCode::mismatch,
      str_cat("ranks disagree about collective #", op_.sequence(), ": rank ", board_.rank_,
              " called ", describe(info()), ", rank ", rank, " called ", describe(theirs),
              "; every rank must call the same operations in the same "
              "order"));
}

// --- the data ---

std::byte* BoardRunner::own_slot() const { return board_.mesh_.segment().slot(round_); }

const std::byte* BoardRunner::slot_of(int rank) const {
  return rank == board_.rank_ ? own_slot() : board_.mesh_.peer_segment(rank)->slot(round_);
}

// What belongs to `rank`: an even cut of an all-reduce, a piece as the caller named it, or
// everything.
BoardRunner::Part BoardRunner::part_of(int rank) const {
  const size_t element = size_of(request_.dtype);
  const auto& counts = request_.shape.counts;
  const auto r = static_cast<size_t>(rank);
  if (request_.shape.kind == OpKind::reduce_scatter || request_.shape.kind == OpKind::all_gather) {
    const uint64_t before = std::accumulate(counts.begin(), counts.begin() + rank, uint64_t{0});
    return {before * element, counts[r] * element};
  }
  if (way_ == Way::one_round) return {0, request_.output.bytes()};
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
  const Part part =
      kind == OpKind::reduce ? Part{0, request_.output.bytes()} : part_of(board_.rank_);
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
      way_ == Way::two_rounds ? board_.mesh_.segment().slot(round_ + 1) + part.offset : result;
  const uint64_t divisor =
      request_.reduce_op == ReduceOp::avg ? static_cast<uint64_t>(board_.num_ranks_) : 1;
  kernels::reduce(shared, sources.data(), sources.size(), part.bytes / size_of(request_.dtype),
                  request_.dtype, request_.reduce_op, divisor);
  if (shared != result) std::memcpy(result, shared, part.bytes);
}

void BoardRunner::copy_from(int rank) {
  const OpKind kind = request_.shape.kind;
  if (kind == OpKind::barrier || way_ == Way::direct) return;
  if (kind == OpKind::broadcast && rank != static_cast<int>(request_.shape.root)) return;
  const Part part = kind == OpKind::broadcast ? Part{0, request_.output.bytes()} : part_of(rank);
  if (part.bytes == 0) return;
  // An all-gather's slot holds the sender's part alone, the others everything.
  const std::byte* from = slot_of(rank) + (kind == OpKind::all_gather ? 0 : part.offset);
  std::memcpy(request_.output.at(part.offset, part.bytes), from, part.bytes);
}

// --- straight from tensor to tensor ---

void BoardRunner::prepare_work() {
  addresses_.resize(static_cast<size_t>(board_.num_ranks_));
  for (int rank = 0; rank < board_.num_ranks_; ++rank) {
    std::memcpy(&addresses_[static_cast<size_t>(rank)], slot_of(rank), sizeof(uint64_t));
  }
  staging_ = pool_.take(segment_bytes() * static_cast<size_t>(board_.num_ranks_ - 1));
}

size_t BoardRunner::segment_bytes() const {
  return segment_bytes_for(static_cast<size_t>(board_.num_ranks_));
}

// One segment of the own part.
Status BoardRunner::work(bool* moved) {
  const Part part = part_of(board_.rank_);
  *moved = true;
  if (worked_ < part.bytes) {
    const size_t bytes = std::min(segment_bytes(), part.bytes - worked_);
    DMLCOMM_RETURN_IF_ERROR(work_on({part.offset + worked_, bytes}));
    worked_ += bytes;
  }
  if (worked_ == part.bytes) finish_round();
  return Status();
}

Status BoardRunner::work_on(const Part& segment) {
  std::vector<const void*> sources(static_cast<size_t>(board_.num_ranks_));
  std::byte* own = request_.output.at(segment.offset, segment.bytes);
  std::byte* free = staging_.data();
  for (int rank = 0; rank < board_.num_ranks_; ++rank) {
    const auto r = static_cast<size_t>(rank);
    sources[r] = rank == board_.rank_ ? own : free;
    if (rank == board_.rank_) continue;
    DMLCOMM_RETURN_IF_ERROR(
        board_.mesh_.link(rank).read_memory(addresses_[r] + segment.offset, free, segment.bytes));
    free += segment_bytes();
  }
  const uint64_t divisor =
      request_.reduce_op == ReduceOp::avg ? static_cast<uint64_t>(board_.num_ranks_) : 1;
  kernels::reduce(own, sources.data(), sources.size(), segment.bytes / size_of(request_.dtype),
                  request_.dtype, request_.reduce_op, divisor);
  for (int i = 1; i < board_.num_ranks_; ++i) {
    // Each rank begins with its successor, so that not all write to the same one.
    DMLCOMM_RETURN_IF_ERROR(write_result((board_.rank_ + i) % board_.num_ranks_, segment));
  }
  return Status();
}

Status BoardRunner::write_result(int rank, const Part& segment) {
  auto& writing_to = board_.mesh_.segment().header().writing_to;
  writing_to.store(static_cast<uint32_t>(rank) + 1);
  // Sequentially consistent, as all of these: either the other sees that we write, or we see that
  // it has given up. Its own second round follows ours, so it accepts the first until then.
  const bool accepts =
      board_.mesh_.peer_segment(rank)->header().accepts_round.load() == first_round_;
  Status status;
  if (accepts) {
    status = board_.mesh_.link(rank).write_memory(
        addresses_[static_cast<size_t>(rank)] + segment.offset,
        request_.output.at(segment.offset, segment.bytes), segment.bytes);
  }
  writing_to.store(0);
  return status;
}

}  // namespace dmlcomm::engine
