#include "proxy/arbitration.h"

#include <algorithm>
#include <cstring>

namespace dmlcomm::proxy {
namespace {

using transport::SeatNic;

// A job is not owed more than this, or than its NIC carries in kMostCreditS: so it cannot catch up
// in one burst with what it did not need.
constexpr double kMostCreditBytes = 128 * 1024;
constexpr double kMostCreditS = 4e-3;
// How far the use of a NIC may be ahead of its rate: kernels take megabytes in one piece, and a
// slow NIC then sends them for long.
constexpr double kMostAheadS = 1;
// A round that comes later than that counts for so long only.
constexpr int64_t kMostRoundNs = 10 * kNsPerMs;
// Rates that were measured are forgotten in this time.
constexpr double kForgetS = 60;
constexpr int64_t kBusyNs = 100 * kNsPerMs;

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
  jobs_.try_emplace(key, 0);
  seats_[next_seat_] = {key, std::move(seat), {}};
  return next_seat_++;
}

void Arbitration::remove(uint64_t number) {
  const auto found = seats_.find(number);
  if (found == seats_.end()) return;
  const Key key = found->second.job;
  for (Place& place : found->second.places) {
    if (place.words == nullptr) continue;
    jobs_[key] += place.seen_bytes;
    place.words->sharing.store(SeatNic::alone);
    std::erase(place.use->places, &place);
  }
  seats_.erase(found);
  const auto is_of_job = [&](const auto& seat) { return seat.second.job == key; };
  if (std::any_of(seats_.begin(), seats_.end(), is_of_job)) return;
  jobs_.erase(key);
  for (auto& [name, nic] : nics_) nic.uses.erase(key);
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
  for (auto& [name, nic] : nics_) {
    learn_rate(nic, passed_ns);
    const unsigned first = share(nic, now_ns);
    if (first < kMaxJobPriority) grant(nic, first, passed_ns);
    for (auto& [key, use] : nic.uses) use.new_bytes = 0;
  }
}

void Arbitration::look(int64_t now_ns) {
  for (auto& [number, seat] : seats_) {
    seat.seat->page().beat_ns.store(now_ns);
    for (size_t i = 0; i < seat.places.size(); ++i) {
      SeatNic& words = seat.seat->page().nics[i];
      if (words.use.load() != SeatNic::used) continue;
      Place& place = seat.places[i];
      if (place.words == nullptr) {
        const std::string name = name_of(words);
        if (name.empty()) continue;
        place.words = &words;
        place.use = &nics_[name].uses[seat.job];
        place.use->places.push_back(&place);
        place.seen_bytes = words.sent_bytes.load();
      }
      look_at(place, now_ns);
    }
  }
}

void Arbitration::look_at(Place& place, int64_t now_ns) {
  Use& use = *place.use;
  const uint64_t sent = place.words->sent_bytes.load();
  if (sent > place.seen_bytes) use.new_bytes += sent - place.seen_bytes;
  // Kernels may take in one piece what they send in a long time.
  if (sent > place.seen_bytes || place.words->num_busy.load() > 0) use.sent_ns = now_ns;
  place.seen_bytes = sent;
  const int64_t wanted_ns = std::min(place.words->wanted_ns.load(), now_ns);
  place.wants = wanted_ns > 0 && now_ns - wanted_ns < kHoldNs;
  use.wanted_ns = std::max(use.wanted_ns, wanted_ns);
}

void Arbitration::learn_rate(Nic& nic, int64_t passed_ns) {
  nic.bits_per_second *= 1 - static_cast<double>(passed_ns) / kNsPerS / kForgetS;
  for (const auto& [key, use] : nic.uses) {
    for (const Place* place : use.places) {
      const auto rate = static_cast<double>(place->words->bits_per_second.load());
      nic.bits_per_second = std::max(nic.bits_per_second, rate);
    }
  }
}

unsigned Arbitration::share(Nic& nic, int64_t now_ns) {
  if (nic.uses.size() < 2) {
    let_all_send(nic, SeatNic::alone);
    return kMaxJobPriority;
  }
  // In the order of priorities.
  const auto sends = [&](const auto& use) { return now_ns - use.second.sent_ns < kHoldNs; };
  const auto found = std::find_if(nic.uses.begin(), nic.uses.end(), sends);
  if (found == nic.uses.end() || found->first.first == nic.uses.rbegin()->first.first) {
    let_all_send(nic, SeatNic::shared);
    return kMaxJobPriority;
  }
  const unsigned first = found->first.first;
  std::vector<unsigned> priorities;
  std::vector<Use*> active;
  for (auto& [key, use] : nic.uses) {
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

void Arbitration::let_all_send(Nic& nic, uint32_t sharing) {
  nic.spare_bytes = 0;
  for (auto& [key, use] : nic.uses) {
    use.share = 0;
    use.is_behind = false;
    for (Place* place : use.places) place->words->sharing.store(sharing);
  }
}

// Who comes behind has no credit at first.
void Arbitration::put(Use& use, bool is_behind) {
  for (Place* place : use.places) {
    SeatNic& words = *place->words;
    const uint32_t now = is_behind ? SeatNic::behind : SeatNic::shared;
    if (words.sharing.load() == now) continue;
    if (is_behind) words.granted_bytes.store(words.taken_bytes.load());
    words.sharing.store(now);
  }
  if (is_behind && !use.is_behind) use.owed_bytes = 0;
  use.is_behind = is_behind;
}

// With strict priorities the first of those that wait have it.
bool Arbitration::takes_spare(const Key& job, const Key& next) const {
  return !policy_.is_strict || job.first == next.first;
}

void Arbitration::grant(Nic& nic, unsigned first, int64_t passed_ns) const {
  double first_share = 0, behind_share = 0, first_bytes = 0, free_bytes = 0;
  for (const auto& [key, use] : nic.uses) {
    (use.is_behind ? behind_share : first_share) += use.share;
    if (!use.is_behind) free_bytes += static_cast<double>(use.new_bytes);
    if (key.first == first) first_bytes += static_cast<double>(use.new_bytes);
  }
  const double by_share = first_share > 0 ? first_bytes / first_share : 0;
  const double passed_s = static_cast<double>(passed_ns) / kNsPerS;
  const double rate = nic.bits_per_second / 8;
  if (rate > 0) {
    nic.spare_bytes += kUsable * rate * passed_s - free_bytes - by_share * behind_share;
    nic.spare_bytes = std::max(nic.spare_bytes, -kMostAheadS * kUsable * rate);
  } else {
    nic.spare_bytes = kUnknownBytesPerSecond * passed_s;
  }
  // What nobody asks for is not kept.
  const double spare = std::max(nic.spare_bytes, 0.0);
  nic.spare_bytes -= spare;
  const auto next = std::find_if(nic.uses.begin(), nic.uses.end(), [](const auto& use) {
    return use.second.is_behind && use.second.share > 0;
  });
  if (next == nic.uses.end()) return;
  double next_share = 0;  // of the jobs that are first among those behind
  for (const auto& [key, use] : nic.uses) {
    if (use.is_behind && takes_spare(key, next->first)) next_share += use.share;
  }
  for (auto& [key, use] : nic.uses) {
    if (!use.is_behind || use.share <= 0) continue;
    use.owed_bytes += by_share * use.share;
    if (takes_spare(key, next->first)) use.owed_bytes += spare * use.share / next_share;
    give(use, std::max(kMostCreditBytes, kMostCreditS * rate));
  }
}

// To those of its processes that wait for it.
void Arbitration::give(Use& use, double most) {
  use.owed_bytes = std::min(use.owed_bytes, most);
  const auto num_waiting = std::count_if(use.places.begin(), use.places.end(),
                                         [](const Place* place) { return place->wants; });
  if (num_waiting > 0) {
    const auto each = static_cast<uint64_t>(use.owed_bytes / static_cast<double>(num_waiting));
    for (Place* place : use.places) {
      if (!place->wants) continue;
      place->words->granted_bytes.fetch_add(each);
      use.owed_bytes -= static_cast<double>(each);
    }
  }
}

bool Arbitration::is_busy(int64_t now_ns) const {
  for (const auto& [name, nic] : nics_) {
    if (nic.uses.size() < 2) continue;
    for (const auto& [key, use] : nic.uses) {
      if (now_ns - use.active_ns() < kBusyNs) return true;
    }
  }
  return false;
}

std::vector<Arbitration::JobStatus> Arbitration::status() const {
  std::vector<JobStatus> jobs;
  for (const auto& [key, gone_bytes] : jobs_) {
    JobStatus job{.name = key.second, .priority = key.first, .sent_bytes = gone_bytes, .nics = {}};
    for (const auto& [number, seat] : seats_) job.num_seats += seat.job == key ? 1 : 0;
    for (const auto& [name, nic] : nics_) {
      const auto found = nic.uses.find(key);
      if (found == nic.uses.end()) continue;
      NicStatus shown{
          .interface = name, .share = found->second.share, .is_behind = found->second.is_behind};
      for (const Place* place : found->second.places) shown.sent_bytes += place->seen_bytes;
      job.sent_bytes += shown.sent_bytes;
      job.nics.push_back(shown);
    }
    jobs.push_back(std::move(job));
  }
  return jobs;
}

}  // namespace dmlcomm::proxy
