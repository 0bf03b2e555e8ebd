#include "proxy/arbitration.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

namespace dmlcomm::proxy {
namespace {

using transport::Direction;
using transport::SeatFlow;
using transport::SeatNic;

constexpr std::array kDirections{Direction::out, Direction::in};

// A job is not owed more than this, or than its NIC carries in kMostCreditS: so it cannot catch up
// in one burst with what it did not need.
constexpr double kMostCreditBytes = 128 * 1024;
constexpr double kMostCreditS = 4e-3;
// How far the use of a NIC may be ahead of its rate, and a job ahead of its part: kernels take
// megabytes in one piece, and a slow NIC then sends them for long.
constexpr double kMostAheadS = 1;
// A round that comes later than that counts for so long only.
constexpr int64_t kMostRoundNs = 10 * kNsPerMs;
// Rates that were measured are forgotten in this time.
constexpr double kForgetS = 60;
constexpr int64_t kBusyNs = 100 * kNsPerMs;
// Who reads fewer bytes between two rounds holds nobody back: they are receipts of what it sends.
constexpr uint64_t kLeastReadBytes = 4096;

// Any process with a seat may have written it. Empty unless it is a name that an interface may
// have.
std::string name_of(const SeatNic& nic) {
  std::string name(nic.name.data(), strnlen(nic.name.data(), nic.name.size()));
  const auto is_text = [](char c) { return c > ' ' && c <= '~' && c != '"'; };
  return std::all_of(name.begin(), name.end(), is_text) ? name : "";
}

}  // namespace

uint64_t Arbitration::add(const std::string& job, unsigned priority,
                          std::shared_ptr<transport::JobSeat> seat) {
  const Key key{priority, job};
  const unsigned classes = policy_.num_classes;
  seat->page().class_mark.store(classes > 0 ? dscp_of_class(priority, classes) + 1 : 0);
  jobs_.try_emplace(key);
  Seat& added = seats_[next_seat_];
  added.job = key;
  added.seat = std::move(seat);
  return next_seat_++;
}

void Arbitration::remove(uint64_t number) {
  const auto found = seats_.find(number);
  if (found == seats_.end()) return;
  const Key key = found->second.job;
  for (auto& places : found->second.places) {
    for (const Direction direction : kDirections) {
      Place& place = places[static_cast<size_t>(direction)];
      if (place.words == nullptr) continue;
      jobs_[key][static_cast<size_t>(direction)] += place.seen_bytes;
      place.words->sharing.store(SeatFlow::alone);
      std::erase(place.use->places, &place);
    }
  }
  seats_.erase(found);
  const auto is_of_job = [&](const auto& seat) { return seat.second.job == key; };
  if (std::any_of(seats_.begin(), seats_.end(), is_of_job)) return;
  jobs_.erase(key);
  for (auto& [name, flow] : flows_) flow.uses.erase(key);
  std::erase_if(flows_, [](const auto& named) { return named.second.uses.empty(); });
}

void Arbitration::remove_all() {
  while (!seats_.empty()) remove(seats_.begin()->first);
}

void Arbitration::drop(const std::string& job, unsigned priority, const std::string& reason) {
  for (auto& [number, seat] : seats_) {
    if (seat.job != Key{priority, job}) continue;
    transport::SeatPage& page = seat.seat->page();
    const size_t bytes = std::min(reason.size(), page.reason.size() - 1);
    std::copy_n(reason.begin(), bytes, page.reason.begin());
    page.is_dropped.store(true);
  }
}

void Arbitration::round(int64_t now_ns) {
  const int64_t passed_ns = std::min(now_ns - std::exchange(last_round_ns_, now_ns), kMostRoundNs);
  look(now_ns);
  for (auto& [name, flow] : flows_) {
    learn_rate(flow, passed_ns);
    const unsigned first = share(flow, now_ns);
    if (first < kMaxJobPriority) grant(flow, first, passed_ns);
    for (auto& [key, use] : flow.uses) use.new_bytes = 0;
  }
}

void Arbitration::look(int64_t now_ns) {
  for (auto& [number, seat] : seats_) {
    seat.seat->page().beat_ns.store(now_ns);
    for (size_t nic = 0; nic < seat.places.size(); ++nic) {
      if (seat.seat->page().nics[nic].use.load() != SeatNic::used) continue;
      if (!seat.is_known[nic]) take_places(seat, nic);
      for (const Direction direction : kDirections) {
        Place& place = seat.places[nic][static_cast<size_t>(direction)];
        const uint64_t least = direction == Direction::out ? 1 : kLeastReadBytes;
        if (place.words != nullptr) look_at(place, least, now_ns);
      }
    }
  }
}

// Where there is no memory for a place the next round takes it.
void Arbitration::take_places(Seat& seat, size_t nic) {
  SeatNic& words = seat.seat->page().nics[nic];
  const std::string name = name_of(words);
  const bool is_taken = !name.empty() && is_nic_(name);
  for (const Direction direction : kDirections) {
    Place& place = seat.places[nic][static_cast<size_t>(direction)];
    if (!is_taken || place.words != nullptr) continue;
    Use& use = flows_[{name, direction}].uses[seat.job];
    use.places.push_back(&place);
    place.use = &use;
    place.nic = &words;
    place.words = &words.flow(direction);
    place.seen_bytes = place.words->bytes.load();
  }
  seat.is_known[nic] = true;
}

void Arbitration::look_at(Place& place, uint64_t least_bytes, int64_t now_ns) {
  Use& use = *place.use;
  const uint64_t bytes = place.words->bytes.load();
  const uint64_t new_bytes = bytes - std::min(bytes, place.seen_bytes);
  use.new_bytes += new_bytes;
  // Kernels may take in one piece what they send in a long time.
  if (new_bytes >= least_bytes || place.words->under_way_bytes.load() > 0) use.sent_ns = now_ns;
  place.seen_bytes = bytes;
  const int64_t wanted_ns = std::min(place.words->wanted_ns.load(), now_ns);
  place.wants = wanted_ns > 0 && now_ns - wanted_ns < kHoldNs;
  use.wanted_ns = std::max(use.wanted_ns, wanted_ns);
}

void Arbitration::learn_rate(Flow& flow, int64_t passed_ns) {
  flow.bits_per_second *= 1 - static_cast<double>(passed_ns) / kNsPerS / kForgetS;
  for (const auto& [key, use] : flow.uses) {
    for (const Place* place : use.places) {
      const auto rate = static_cast<double>(place->nic->bits_per_second.load());
      flow.bits_per_second = std::max(flow.bits_per_second, rate);
    }
  }
}

unsigned Arbitration::share(Flow& flow, int64_t now_ns) {
  if (flow.uses.size() < 2) {
    let_all_send(flow, SeatFlow::alone);
    return kMaxJobPriority;
  }
  // In the order of priorities.
  const auto sends = [&](const auto& use) { return now_ns - use.second.sent_ns < kHoldNs; };
  const auto found = std::find_if(flow.uses.begin(), flow.uses.end(), sends);
  if (found == flow.uses.end() || found->first.first == flow.uses.rbegin()->first.first) {
    let_all_send(flow, SeatFlow::shared);
    return kMaxJobPriority;
  }
  const unsigned first = found->first.first;
  std::vector<unsigned> priorities;
  std::vector<Use*> active;
  for (auto& [key, use] : flow.uses) {
    use.share = 0;
    put(use, key.first > first);
    if (key.first < first || now_ns - use.active_ns() >= kHoldNs) continue;
    priorities.push_back(key.first);
    active.push_back(&use);
  }
  const std::vector<double> shares = shares_of(priorities, policy_);
  for (size_t i = 0; i < active.size(); ++i) active[i]->share = shares[i];
  return first;
}

void Arbitration::let_all_send(Flow& flow, uint32_t sharing) {
  flow.spare_bytes = 0;
  for (auto& [key, use] : flow.uses) {
    use.share = 0;
    use.is_behind = false;
    for (Place* place : use.places) place->words->sharing.store(sharing);
  }
}

// Who comes behind has no credit at first, and owes what its kernels send before the first ones: a
// part of the bytes would otherwise come on top of these.
void Arbitration::put(Use& use, bool is_behind) {
  for (Place* place : use.places) {
    SeatFlow& words = *place->words;
    const uint32_t now = is_behind ? SeatFlow::behind : SeatFlow::shared;
    if (words.sharing.load() == now) continue;
    if (is_behind) words.granted_bytes.store(words.taken_bytes.load());
    words.sharing.store(now);
  }
  if (is_behind && !use.is_behind) {
    use.owed_bytes = 0;
    for (const Place* place : use.places) {
      use.owed_bytes -= static_cast<double>(place->words->under_way_bytes.load());
    }
  }
  use.is_behind = is_behind;
}

// By their shares of what the first ones have sent. Who does not take that is owed some, and leaves
// the rest to those that wait.
void Arbitration::grant(Flow& flow, unsigned first, int64_t passed_ns) const {
  double first_share = 0, behind_share = 0, first_bytes = 0, free_bytes = 0;
  for (const auto& [key, use] : flow.uses) {
    (use.is_behind ? behind_share : first_share) += use.share;
    if (!use.is_behind) free_bytes += static_cast<double>(use.new_bytes);
    if (key.first == first) first_bytes += static_cast<double>(use.new_bytes);
  }
  const double by_share = first_share > 0 ? first_bytes / first_share : 0;
  double spare = take_spare(flow, free_bytes + by_share * behind_share, passed_ns);
  const double most = std::max(kMostCreditBytes, kMostCreditS * flow.bits_per_second / 8);
  for (auto& [key, use] : flow.uses) {
    if (!use.is_behind || use.share <= 0) continue;
    const double least = -kMostAheadS * use.share * flow.bits_per_second / 8;
    use.owed_bytes = std::max(use.owed_bytes, least) + by_share * use.share;
    give(use, most);
    spare += std::max(use.owed_bytes - most, 0.0);
    use.owed_bytes = std::min(use.owed_bytes, most);
  }
  give_spare(flow, spare, most);
}

// What nobody asks for is not kept.
double Arbitration::take_spare(Flow& flow, double used_bytes, int64_t passed_ns) {
  const double passed_s = static_cast<double>(passed_ns) / kNsPerS;
  const double usable = kUsable * flow.bits_per_second / 8;
  if (usable <= 0) return kUnknownBytesPerSecond * passed_s;
  flow.spare_bytes += usable * passed_s - used_bytes;
  flow.spare_bytes = std::max(flow.spare_bytes, -kMostAheadS * usable);
  const double spare = std::max(flow.spare_bytes, 0.0);
  flow.spare_bytes -= spare;
  return spare;
}

// With strict priorities the first of those that wait have it.
void Arbitration::give_spare(Flow& flow, double spare, double most) const {
  std::vector<Use*> takers;
  double all_shares = 0;
  std::optional<unsigned> next;
  for (auto& [key, use] : flow.uses) {
    const bool any_waits = std::any_of(use.places.begin(), use.places.end(),
                                       [&](const Place* place) { return waits(*place, most); });
    if (!use.is_behind || use.share <= 0 || !any_waits) continue;
    if (policy_.is_strict && key.first != next.value_or(key.first)) break;
    next = key.first;
    takers.push_back(&use);
    all_shares += use.share;
  }
  for (Use* use : takers) {
    use->owed_bytes += spare * use->share / all_shares;
    give(*use, most);
  }
}

// Who has wanted credit of late may have so much now that it does not wait any more.
bool Arbitration::waits(const Place& place, double most) {
  const uint64_t left = place.words->granted_bytes.load() - place.words->taken_bytes.load();
  return place.wants && static_cast<double>(static_cast<int64_t>(left)) < most;
}

// To those of its processes that wait for it.
void Arbitration::give(Use& use, double most) {
  const auto num_waiting = std::count_if(use.places.begin(), use.places.end(),
                                         [&](const Place* place) { return waits(*place, most); });
  if (num_waiting == 0 || use.owed_bytes <= 0) return;
  const auto each = static_cast<uint64_t>(use.owed_bytes / static_cast<double>(num_waiting));
  for (Place* place : use.places) {
    if (!waits(*place, most)) continue;
    place->words->granted_bytes.fetch_add(each);
    use.owed_bytes -= static_cast<double>(each);
  }
}

bool Arbitration::is_busy(int64_t now_ns) const {
  for (const auto& [name, flow] : flows_) {
    if (flow.uses.size() < 2) continue;
    for (const auto& [key, use] : flow.uses) {
      if (now_ns - use.active_ns() < kBusyNs) return true;
    }
  }
  return false;
}

std::vector<Arbitration::JobStatus> Arbitration::status() const {
  std::vector<JobStatus> jobs;
  for (const auto& [key, gone_bytes] : jobs_) {
    JobStatus job{.name = key.second, .priority = key.first, .nics = {}};
    job.sent_bytes = gone_bytes[static_cast<size_t>(Direction::out)];
    job.received_bytes = gone_bytes[static_cast<size_t>(Direction::in)];
    for (const auto& [number, seat] : seats_) job.num_seats += seat.job == key ? 1 : 0;
    for (const auto& [named, flow] : flows_) {
      const auto& [name, direction] = named;
      const auto found = flow.uses.find(key);
      if (found == flow.uses.end()) continue;
      // Flows of one name come one after the other.
      if (job.nics.empty() || job.nics.back().interface != name) job.nics.push_back({name, {}, {}});
      FlowStatus shown{.share = found->second.share, .is_behind = found->second.is_behind};
      for (const Place* place : found->second.places) shown.bytes += place->seen_bytes;
      const bool is_out = direction == Direction::out;
      (is_out ? job.sent_bytes : job.received_bytes) += shown.bytes;
      (is_out ? job.nics.back().out : job.nics.back().in) = shown;
    }
    jobs.push_back(std::move(job));
  }
  return jobs;
}

}  // namespace dmlcomm::proxy
