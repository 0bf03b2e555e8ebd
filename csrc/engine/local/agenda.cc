#include "engine/local/agenda.h"

#include <algorithm>

#include "engine/local/board.h"

namespace dmlcomm::engine {
namespace {

// Smaller ones end about as soon as ranks notice what is more urgent.
constexpr size_t kLeastPassedBytes = 1u << 20;

}  // namespace

bool AgendaWords::is_ordered(uint64_t sequence) const {
  const uint64_t place = sequence % kPlaces;
  return (ordered[place / kBits].load(std::memory_order_relaxed) >> place % kBits & 1) != 0;
}

void AgendaWords::set_ordered(uint64_t sequence, bool is_ordered) {
  const uint64_t place = sequence % kPlaces;
  std::atomic<uint64_t>& word = ordered[place / kBits];
  const uint64_t bit = uint64_t{1} << place % kBits;
  const uint64_t others = word.load(std::memory_order_relaxed) & ~bit;
  word.store(is_ordered ? others | bit : others, std::memory_order_relaxed);
}

uint64_t most_urgent(const std::vector<AgendaItem>& items) {
  const AgendaItem* found = nullptr;
  uint8_t found_ticket = UINT8_MAX;
  uint8_t ticket_of_ordered = UINT8_MAX;  // of those behind
  for (auto item = items.rbegin(); item != items.rend(); ++item) {
    const uint8_t ticket = std::min(item->ticket, ticket_of_ordered);
    const bool may_run = !item->is_ordered || std::next(item) == items.rend();
    if (item->is_ordered) ticket_of_ordered = ticket;
    if (!may_run || (found != nullptr && ticket > found_ticket)) continue;
    found = &*item;
    found_ticket = ticket;
  }
  return found->sequence;
}

uint64_t choice(const std::vector<AgendaItem>& items, uint64_t number) {
  return number % kChoicesPerOldest == 0 ? items.front().sequence : most_urgent(items);
}

void Agenda::begin(uint64_t first) {
  is_used_ = true;
  last_shown_ = first - 1;
}

// A bit is used again only when the collective that had it has ended here, so it has been chosen.
void Agenda::show(OperationQueue& queue) {
  const uint64_t until =
      std::min(queue.last_taken(), queue.oldest_collective() + AgendaWords::kPlaces - 1);
  if (last_shown_ >= until) return;
  AgendaWords& own = board_.header().agenda;
  for (uint64_t sequence = last_shown_ + 1; sequence <= until; ++sequence) {
    own.set_ordered(sequence, queue.waits_for_earlier(sequence));
  }
  own.last_called.store(until, std::memory_order_release);
  last_shown_ = until;
  if (board_.rank() != 0) board_.notify(0);
}

// The last collective that all ranks have called.
uint64_t Agenda::called_by_all() const {
  uint64_t until = last_shown_;
  for (int rank = 1; rank < board_.num_ranks(); ++rank) {
    // Pairs with the release in show(): the bits of these are there.
    const AgendaWords& words = board_.header_of(rank).agenda;
    until = std::min(until, words.last_called.load(std::memory_order_acquire));
  }
  return until;
}

std::vector<AgendaItem> Agenda::items(const OperationQueue& queue, uint64_t until) const {
  const auto is_ordered = [this](uint64_t sequence) {
    bool found = false;
    for (int rank = 0; rank < board_.num_ranks(); ++rank) {
      found = found || board_.header_of(rank).agenda.is_ordered(sequence);
    }
    return found;
  };
  std::vector<AgendaItem> items;
  queue.for_each_collective([&](const OperationQueue::Running& running) {
    const uint64_t sequence = running.sequence;
    if (sequence > until) return;
    items.push_back({sequence, running.op->ticket(), is_ordered(sequence)});
  });
  return items;
}

uint64_t Agenda::choose(const OperationQueue& queue) {
  const std::vector<AgendaItem> items = this->items(queue, called_by_all());
  if (items.empty()) return 0;
  num_beside_ = 0;
  return choice(items, ++num_choices_);
}

// The one that runs is among those to choose from.
uint64_t Agenda::choose_beside(OperationQueue& queue) {
  if (last_run_ == 0 || num_beside_ + 1 >= kChoicesPerOldest) return 0;
  const uint64_t until = called_by_all();
  if (looked_at_ == std::array{until, last_run_, last_beside_}) return 0;
  looked_at_ = {until, last_run_, last_beside_};
  const auto is_on_a_board = [&queue](uint64_t sequence) -> const OperationQueue::Running* {
    const auto has_number = [&](const auto& one) { return one.sequence == sequence; };
    const OperationQueue::Running* const found = queue.find_if(has_number);
    return found == nullptr || found->plan != nullptr ? nullptr : found;
  };
  const OperationQueue::Running* const running = is_on_a_board(last_run_);
  if (running == nullptr || !running->has_started) return 0;
  const OpRequest& request = running->op->request();
  if (std::max(request.input.bytes(), request.output.bytes()) < kLeastPassedBytes) return 0;
  const uint64_t chosen = most_urgent(items(queue, until));
  if (chosen == last_run_ || is_on_a_board(chosen) == nullptr) return 0;
  ++num_beside_;
  return chosen;
}

// Pairs with the acquires in next() and next_beside().
void Agenda::publish(std::atomic<uint64_t>& next, uint64_t chosen) {
  if (chosen == 0) return;
  next.store(chosen, std::memory_order_release);
  for (int rank = 1; rank < board_.num_ranks(); ++rank) board_.notify(rank);
}

Result<OperationQueue::Running*> Agenda::start(uint64_t chosen, uint64_t& last,
                                               OperationQueue& queue) {
  last = chosen;
  if (OperationQueue::Running* running = queue.start(chosen)) return running;
  return Status(StatusCode::mismatch, "rank 0 runs collective #", chosen, ", which rank ",
                board_.rank(), " has refused; every rank must call the same operations");
}

Result<OperationQueue::Running*> Agenda::next(OperationQueue& queue) {
  std::atomic<uint64_t>& next = board_.header_of(0).agenda.next;
  if (board_.rank() == 0) publish(next, choose(queue));
  const uint64_t chosen = next.load(std::memory_order_acquire);
  if (chosen == last_run_) return static_cast<OperationQueue::Running*>(nullptr);
  return start(chosen, last_run_, queue);
}

Result<OperationQueue::Running*> Agenda::next_beside(OperationQueue& queue) {
  AgendaWords& words = board_.header_of(0).agenda;
  if (board_.rank() == 0) publish(words.next_beside, choose_beside(queue));
  // It may need the end of one that still runs here, and has ended on rank 0. Then rank 0 has
  // published the one beside which it is to run, which this rank starts first.
  const uint64_t chosen = words.next_beside.load(std::memory_order_acquire);
  const bool is_behind = words.next.load(std::memory_order_acquire) != last_run_;
  if (chosen == last_beside_ || is_behind) return static_cast<OperationQueue::Running*>(nullptr);
  return start(chosen, last_beside_, queue);
}

bool Agenda::waits_for(int peer, uint64_t oldest) const {
  return board_.header_of(peer).agenda.last_called.load(std::memory_order_acquire) < oldest;
}

}  // namespace dmlcomm::engine
