#include "engine/local/board_runner.h"

#include <algorithm>

#include "base/check.h"
#include "base/str_cat.h"

namespace dmlcomm::engine {

BoardRunner::BoardRunner(Board& board, const OpState& op, const schedule::Algorithm& algorithm)
    : Runner(info_of(op, schedule::number_of(algorithm))), board_(board), op_(op) {}

Status BoardRunner::start() {
  enter();
  return Status();
}

Status BoardRunner::advance(bool* moved) {
  if (phase_ == Phase::take) return take_published(moved);
  if (phase_ == Phase::work) return work(moved);
  return Status();
}

bool BoardRunner::waits_for(int peer) const {
  switch (phase_) {
    // A peer that has published may leave: its slot stays readable.
    case Phase::take:
      return std::find(pending_.begin(), pending_.end(), peer) != pending_.end() &&
             !board_.published(peer, round_);
    case Phase::work: return true;  // its tensor is read and written until all is done
    case Phase::done: break;
  }
  return false;
}

// An operation takes what all ranks have published before it goes on or ends, so all are through
// with the slot that is filled now.
void BoardRunner::enter() {
  DMLCOMM_CHECK(board_.all_published(board_.round()));
  round_ = board_.round() + 1;
  ++round_of_op_;
  const uint64_t slot = round_ % BoardHeader::kNumSlots;
  board_.header().op[slot] = info();
  board_.header().uses_tickets[slot] = board_.uses_tickets();
  if (board_.uses_tickets()) report_.add_ticketed(1);
  put();
  board_.publish();
  for (int rank = 0; rank < num_ranks(); ++rank) {
    if (rank != this->rank()) pending_.push_back(rank);
  }
  phase_ = Phase::take;
}

Status BoardRunner::take_published(bool* moved) {
  for (size_t i = 0; i < pending_.size();) {
    const int rank = pending_[i];
    if (!board_.published(rank, round_)) {
      ++i;
      continue;
    }
    DMLCOMM_RETURN_IF_ERROR(check(rank));
    DMLCOMM_RETURN_IF_ERROR(take(rank));
    pending_.erase(pending_.begin() + static_cast<ptrdiff_t>(i));
    *moved = true;
  }
  return pending_.empty() ? all_taken() : Status();
}

// The rank that published this round did so for the same operation.
Status BoardRunner::check(int rank) {
  // A rank that is a round ahead has seen ours, and so agreed with us; its slot of this round
  // stays.
  const uint64_t slot = round_ % BoardHeader::kNumSlots;
  if (board_.header_of(rank).uses_tickets[slot]) {
    report_.add_ticketed(1);
  }
  const transport::OpInfo& theirs = board_.header_of(rank).op[slot];
  if (theirs == info()) return Status();
  return disagreement(op_.sequence(), str_cat("rank ", this->rank()), info(),
                      str_cat("rank ", rank), theirs);
}

uint64_t BoardRunner::divisor() const {
  return request().reduce_op == ReduceOp::avg ? static_cast<uint64_t>(num_ranks()) : 1;
}

}  // namespace dmlcomm::engine
