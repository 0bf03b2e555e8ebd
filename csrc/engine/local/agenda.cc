#include "engine/local/agenda.h"

#include <algorithm>

#include "engine/local/board.h"

namespace dmlcomm::engine {
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

uint64_t Agenda::choose(OperationQueue& queue) {
  uint64_t until = last_shown_;
  for (int rank = 1; rank < board_.num_ranks(); ++rank) {
    // Pairs with the release in show(): the bits of these are there.
    const AgendaWords& words = board_.header_of(rank).agenda;
    until = std::min(until, words.last_called.load(std::memory_order_acquire));
  }
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
  if (items.empty()) return 0;
  return choice(items, ++num_choices_);
}

Result<OperationQueue::Running*> Agenda::next(OperationQueue& queue) {
  OperationQueue::Running* const none = nullptr;
  std::atomic<uint64_t>& next = board_.header_of(0).agenda.next;
  if (board_.rank() == 0 && next.load(std::memory_order_relaxed) == last_run_) {
    const uint64_t chosen = choose(queue);
    if (chosen == 0) return none;
    next.store(chosen, std::memory_order_release);
    for (int rank = 1; rank < board_.num_ranks(); ++rank) board_.notify(rank);
  }
  // Pairs with the release above.
  const uint64_t chosen = next.load(std::memory_order_acquire);
  if (chosen == last_run_) return none;
  last_run_ = chosen;
  if (OperationQueue::Running* running = queue.start(chosen)) return running;
  return Status(StatusCode::mismatch, "rank 0 runs collective #", chosen, ", which rank ",
                board_.rank(), " has refused; every rank must call the same operations");
}

bool Agenda::waits_for(int peer, uint64_t oldest) const {
  return board_.header_of(peer).agenda.last_called.load(std::memory_order_acquire) < oldest;
}

}  // namespace dmlcomm::engine
