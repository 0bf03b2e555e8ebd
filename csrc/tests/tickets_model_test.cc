// Tickets that ranks draw at random, each for itself: whatever they are, all operations come to an
// end. A model of several ranks, each with its real OperationQueue; no bytes move.

#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <memory>
#include <random>
#include <vector>

#include "engine/operation_queue.h"

namespace dmlcomm::engine {
namespace {

constexpr size_t kMaxBytesBesideOldest = 256u << 20;
constexpr uint64_t kWindows[] = {1, 8, 64, 256};  // the last one is the engine's

class NoDriver final : public Driver {
 public:
  bool drive_until(OpState& op, Deadline) override { return op.done(); }
};

// What all ranks know of a collective.
struct Call {
  size_t bytes = 0;
  uint64_t window = 1;
};

class ModelRank {
 public:
  ModelRank(const std::vector<Call>& calls, unsigned seed) : calls_(calls), random_(seed) {}

  bool is_done() const { return num_called_ == calls_.size() && running_.empty() && !queued(); }
  bool has_started(uint64_t sequence) const {
    return sequence < is_started_.size() && is_started_[sequence];
  }

  bool call_next() {
    if (num_called_ == calls_.size()) return false;
    OpRequest request;
    request.shape.kind = schedule::OpKind::all_reduce;
    request.shape.counts = {calls_[num_called_].bytes};
    request.ticket = static_cast<uint8_t>(random_() % 3 == 0 ? 128 : random_() % 256);
    // One tensor in four is used by other operations, too, on this rank alone.
    const size_t place = random_() % 4 == 0 ? random_() % 5 : 5 + num_called_;
    std::byte* const nowhere = nullptr;
    request.output = BufferView(Span{nowhere + place * (1u << 30), calls_[num_called_].bytes});
    ops_.push_back(queue_.submit(&driver_, std::move(request), Deadline()));
    is_started_.resize(ops_.size() + 1);
    ++num_called_;
    return true;
  }

  // Plans and starts what may be.
  bool start() {
    bool moved = queue_.take_submitted();
    while (OperationQueue::Running* next = queue_.next_to_plan()) {
      if (queue_.distance(*next) >= calls_[next->sequence - 1].window) break;
      queue_.planned(*next);
      moved = true;
    }
    while (OperationQueue::Running* next = queue_.next_to_start()) {
      is_started_[next->sequence] = true;
      running_.push_back(next);
      check_memory();
      moved = true;
    }
    return moved;
  }

  // Ends one of those that `may_end(sequence)`.
  template <typename Test>
  bool end_one(Test may_end) {
    std::shuffle(running_.begin(), running_.end(), random_);
    const auto it = std::find_if(running_.begin(), running_.end(),
                                 [&](const auto* one) { return may_end(one->sequence); });
    if (it == running_.end()) return false;
    queue_.end(**it, Status());
    running_.erase(it);
    queue_.sweep();
    return true;
  }

 private:
  bool queued() const { return std::count(is_started_.begin() + 1, is_started_.end(), false) > 0; }

  void check_memory() const {
    size_t bytes = 0;
    for (const auto* one : running_) {
      if (one->sequence != queue_.oldest_collective()) bytes += one->op->request().output.bytes();
      for (const auto* other : running_) {
        if (one == other) continue;
        EXPECT_FALSE(one->op->request().output.overlaps(other->op->request().output));
      }
    }
    EXPECT_LE(bytes, kMaxBytesBesideOldest);
  }

  const std::vector<Call>& calls_;
  std::mt19937 random_;
  NoDriver driver_;
  OperationQueue queue_{1};
  size_t num_called_ = 0;
  std::vector<bool> is_started_{false};  // by sequence number
  std::vector<std::shared_ptr<OpState>> ops_;
  std::vector<OperationQueue::Running*> running_;
};

// A collective ends on a rank when all ranks have started it: nothing needs less.
void run_to_the_end(size_t num_ranks, size_t num_calls, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<Call> calls(num_calls);
  for (Call& call : calls) {
    call.bytes = size_t{1} << random() % 28;
    call.window = kWindows[random() % std::size(kWindows)];
  }
  std::vector<std::unique_ptr<ModelRank>> ranks;
  for (size_t rank = 0; rank < num_ranks; ++rank) {
    ranks.push_back(std::make_unique<ModelRank>(calls, random()));
  }
  const auto started_everywhere = [&](uint64_t sequence) {
    return std::all_of(ranks.begin(), ranks.end(),
                       [&](const auto& rank) { return rank->has_started(sequence); });
  };
  const auto is_done = [](const auto& rank) { return rank->is_done(); };
  while (!std::all_of(ranks.begin(), ranks.end(), is_done)) {
    bool moved = false;
    for (int turn = 0; turn < 8; ++turn) {
      ModelRank& rank = *ranks[random() % num_ranks];
      for (size_t i = random() % 6; i > 0; --i) moved |= rank.call_next();
      moved |= rank.start();
      if (random() % 2 == 0) moved |= rank.end_one(started_everywhere);
    }
    for (const auto& rank : ranks) {
      if (moved) break;
      moved = rank->call_next() || rank->start() || rank->end_one(started_everywhere);
    }
    ASSERT_TRUE(moved) << "seed " << seed << ": the ranks wait for each other";
  }
}

TEST(TicketsModelTest, RandomTicketsOnEachRankComeToAnEnd) {
  for (size_t num_ranks : {2, 3, 4, 5}) {
    for (unsigned seed = 1; seed <= 20; ++seed) run_to_the_end(num_ranks, 500, seed);
  }
}

}  // namespace
}  // namespace dmlcomm::engine
