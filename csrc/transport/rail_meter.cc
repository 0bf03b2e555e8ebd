#include "transport/rail_meter.h"

#include <algorithm>
#include <utility>

#include "base/clock.h"

namespace dmlcomm::transport {
namespace {

// Fewer bytes tell of latencies only.
constexpr uint64_t kLeastBytes = 16 * 1024;
// The kernel counts the time in which a connection is busy in ticks of up to 10 ms, and rounds each
// of its pieces: a short time of many pieces may be half as long.
constexpr double kLeastBusyS = 0.2;
// A rail on which a small message would take so many times as long as on the best one gets none: an
// operation waits for the slowest of its messages.
constexpr double kMostTimesLonger = 5;
// Rails that are through with it at nearly the same time take turns.
constexpr double kNearlySoonest = 1.25;
// A very small message leaves the usual rail if it is there in less than half the time on another.
constexpr double kClearlySooner = 2;
// But for one in so many, until large operations have told its rate.
constexpr size_t kMostLeftOut = 2048;
// By so much a rail may be behind others with its small messages, and behind the clock.
constexpr double kMostSmallDebtS = 5e-3;
// A period that messages would fill to this share without their bytes tells only that the rail has
// at least its rate.
constexpr double kMostLatency = 0.5;
// Of the bytes of a period: then the time of large frames is that of all.
constexpr double kMostOf = 0.9;
// A piece of that time tells the rate if the rail carries so much between two pauses, several
// bursts of a shaper; the whole time does if there are hardly any pauses.
constexpr uint64_t kLeastPieceBytes = 256 * 1024;
constexpr double kLeastInUse = 0.8;
// Another rail was in use for so much longer, in so many periods in a row.
constexpr double kLeastIdle = 1.4;
constexpr size_t kIdlePeriods = 3;
// A period with so many times fewer bytes than another one of the last few does not count, unless
// it shows that the rate is higher than it seems.
constexpr uint64_t kMuchFewer = 8;

// Of a window for the arbiter: a shaper's burst is little beside what it has in the shortest one,
// and so are frames that were under way at the beginning beside what it has in the longest one.
constexpr int64_t kLeastWindowNs = 100 * kNsPerMs;
constexpr int64_t kMostWindowNs = 1 * kNsPerS;

double bits_per_second_of(uint64_t bytes, double seconds) {
  return 8 * static_cast<double>(bytes) / seconds;
}

}  // namespace

void RailMeter::begin_frame(int64_t now_ns, uint64_t bytes) {
  if (num_frames_ == 0) begin_window(now_ns);
  bytes_of_frames_ += bytes;
  credit_.begin(bytes);
  if (num_frames_++ > 0) return;
  frames_since_ns_ = now_ns;
}

void RailMeter::end_frame(int64_t now_ns, uint64_t bytes) {
  period_.frame_bytes += bytes;
  piece_bytes_ += bytes;
  bytes_of_frames_ -= bytes;
  credit_.end(bytes);
  window_bytes_ += static_cast<int64_t>(bytes);
  if (const int64_t passed_ns = now_ns - window_since_ns_; passed_ns >= kLeastWindowNs) {
    const auto carried = static_cast<uint64_t>(std::max<int64_t>(window_bytes_, 0));
    carried_bps_ = bits_per_second_of(carried, static_cast<double>(passed_ns) / kNsPerS);
    tell_arbiter();
    if (passed_ns >= kMostWindowNs) begin_window(now_ns);
  }
  if (--num_frames_ > 0) return;
  end_piece(now_ns);
}

void RailMeter::begin_window(int64_t now_ns) {
  window_since_ns_ = now_ns;
  window_bytes_ = -static_cast<int64_t>(bytes_of_frames_);
}

void RailMeter::end_piece(int64_t now_ns) {
  const int64_t piece_ns = now_ns - std::exchange(frames_since_ns_, now_ns);
  const uint64_t bytes = std::exchange(piece_bytes_, 0);
  period_.frames_ns += piece_ns;
  if (bytes < kLeastPieceBytes) return;
  period_.long_bytes += bytes;
  period_.long_ns += piece_ns;
}

int64_t RailMeter::in_use_ns(int64_t now_ns) const {
  return period_.frames_ns + (num_frames_ > 0 ? now_ns - frames_since_ns_ : 0);
}

void RailMeter::add_sample(uint64_t bytes, int64_t duration_ns) {
  period_.sampled_bytes += bytes;
  period_.sampled_ns += std::max<int64_t>(duration_ns, 1);
}

// Bytes that an earlier period has left on their way do not count for this one.
void RailMeter::add(const Channel::Flow& before, const Channel::Flow& now, uint64_t payload_bytes) {
  period_.bytes += std::min(now.confirmed_bytes - before.confirmed_bytes, payload_bytes);
  period_.busy_us += static_cast<int64_t>(now.busy_us - before.busy_us);
  bytes_resent_ += now.bytes_resent - before.bytes_resent;
  if (now.min_rtt_us == 0) return;
  shortest_us_ = shortest_us_ == 0 ? now.min_rtt_us : std::min(shortest_us_, now.min_rtt_us);
}

void RailMeter::end_period(int64_t now_ns, int64_t active_ns, double latency_s, Traffic traffic,
                           const Others& others) {
  if (shortest_us_ > 0) round_trips_us_.add(std::exchange(shortest_us_, 0), now_ns);
  if (num_frames_ > 0) end_piece(now_ns);
  period_.others = others;
  period_.active_ns = active_ns;
  period_.latency_s = latency_s;
  period_.is_telling = traffic == Traffic::telling;
  period_.is_slowed = traffic == Traffic::slowed;
  const Period now = std::exchange(period_, {});
  if (traffic == Traffic::mixed) kept_ = {};
  const bool has_better = has_been_told_ || (kept_.is_telling && kept_.bytes > 0);
  const bool is_of_use = now.is_telling || !has_better;
  if (traffic == Traffic::mixed || !is_of_use) return;
  if (now.is_telling && !kept_.is_telling) kept_ = {};
  kept_.add(now);
  if (kept_.bytes >= kLeastBytes) take(std::exchange(kept_, {}));
}

void RailMeter::Period::add(const Period& other) {
  bytes += other.bytes;
  busy_us += other.busy_us;
  frame_bytes += other.frame_bytes;
  frames_ns += other.frames_ns;
  long_bytes += other.long_bytes;
  long_ns += other.long_ns;
  others.most_in_use_ns += other.others.most_in_use_ns;
  others.times_assumed = other.others.times_assumed;
  active_ns += other.active_ns;
  latency_s += other.latency_s;
  sampled_bytes += other.sampled_bytes;
  sampled_ns += other.sampled_ns;
  is_telling = other.is_telling;
  is_slowed = is_slowed || other.is_slowed;
}

void RailMeter::take(const Period& period) {
  const double busy_s = static_cast<double>(period.busy_us) * 1e-6;
  const double active_s = static_cast<double>(period.active_ns) / kNsPerS;
  const double frames_s = static_cast<double>(period.frames_ns) / kNsPerS;
  const auto frame_bytes = static_cast<double>(period.frame_bytes);
  const bool are_frames = frame_bytes >= kMostOf * static_cast<double>(period.bytes);
  const bool has_long = period.long_ns > 0;
  const bool has_pauses = are_frames && !has_long && frames_s < kLeastInUse * active_s;
  double seconds = active_s;
  if (busy_s >= kLeastBusyS && (has_long || !are_frames)) seconds = std::min(seconds, busy_s);
  if (seconds <= 0) return;
  double rate = bits_per_second_of(period.bytes, seconds);
  if (has_long) {
    const double long_s = static_cast<double>(period.long_ns) / kNsPerS;
    rate = std::max(rate, bits_per_second_of(period.long_bytes, long_s));
  }
  if (has_pauses) {
    rate = std::max(rate, rate_without_pauses(period));
  } else {
    num_idle_ = 0;
  }
  bool may_be_slow = period.is_slowed || has_pauses || period.latency_s > kMostLatency * seconds;
  if (!period.is_telling) {
    const double sampled_s = static_cast<double>(period.sampled_ns) / kNsPerS;
    may_be_slow = period.is_slowed || sampled_s == 0 || has_been_told_least_;
    if (sampled_s > 0) rate = std::max(rate, bits_per_second_of(period.sampled_bytes, sampled_s));
  }
  if (may_be_slow && rate <= bits_per_second()) return;
  is_lower_bound_ = is_lower_bound_ && may_be_slow;
  has_been_told_least_ |= period.is_telling;
  const bool tells = period.is_telling && !may_be_slow;
  if (tells && !std::exchange(has_been_told_, true)) rates_ = {};
  const auto most_bytes = [&] { return std::ranges::max(rates_, {}, &Rate::bytes).bytes; };
  const uint64_t bytes = may_be_slow ? std::max(period.bytes, most_bytes()) : period.bytes;
  rates_[num_periods_++ % rates_.size()] = {rate, bytes};
  const uint64_t most = most_bytes();
  bps_ = 0;
  for (const Rate& last : rates_) {
    if (last.bytes * kMuchFewer >= most) bps_ = std::max(bps_, last.bits_per_second);
  }
}

double RailMeter::rate_without_pauses(const Period& period) {
  const auto in_use_ns = static_cast<double>(std::max<int64_t>(period.frames_ns, 1));
  const double times = static_cast<double>(period.others.most_in_use_ns) / in_use_ns;
  if (times < kLeastIdle) {
    num_idle_ = 0;
    return 0;
  }
  least_idle_ = num_idle_ == 0 ? times : std::min(least_idle_, times);
  if (++num_idle_ < kIdlePeriods) return 0;
  num_idle_ = 0;
  const double most = bits_per_second_of(period.frame_bytes, in_use_ns / kNsPerS);
  const double like_others = period.others.times_assumed * assumed_bps_;
  return std::min({most, like_others, bits_per_second() * least_idle_});
}

double RailMeter::rate_for_small(double times) const {
  if (!is_lower_bound_) return bits_per_second();
  return std::max(bits_per_second(), (times > 0 ? times : 1) * assumed_bps_);
}

double RailMeter::times_assumed(std::span<const RailMeter> rails) {
  double times = 0;
  for (const RailMeter& rail : rails) {
    times = std::max(times, rail.bits_per_second() / rail.assumed_bps_);
  }
  return times;
}

double RailMeter::seconds_for(size_t bytes, double times) const {
  const double half_trip_s = std::max(round_trip_us(), kLeastRoundTripUs) / 2 * 1e-6;
  return half_trip_s + 8 * static_cast<double>(bytes) / rate_for_small(times);
}

double RailMeter::seconds_until_through(size_t bytes, double times, int64_t now_ns) const {
  const int64_t before_ns = std::max<int64_t>(small_until_ns_ - now_ns, 0);
  return static_cast<double>(before_ns) / kNsPerS + seconds_for(bytes, times);
}

RailMeter::Others RailMeter::others_of(std::span<const RailMeter> rails, int64_t now_ns) {
  Others others{0, times_assumed(rails)};
  for (const RailMeter& rail : rails) {
    others.most_in_use_ns = std::max(others.most_in_use_ns, rail.in_use_ns(now_ns));
  }
  return others;
}

uint8_t RailMeter::first_through(std::span<const RailMeter> rails, size_t bytes) {
  const double times = times_assumed(rails);
  const auto time = [=](const RailMeter& rail) {
    return rail.seconds_for(rail.bytes_of_frames_ + bytes, times);
  };
  const auto is_sooner = [&](const RailMeter& a, const RailMeter& b) { return time(a) < time(b); };
  return static_cast<uint8_t>(std::min_element(rails.begin(), rails.end(), is_sooner) -
                              rails.begin());
}

size_t RailMeter::nearest(std::span<const RailMeter> rails, size_t usual, size_t bytes) {
  const double times = times_assumed(rails);
  size_t found = usual;
  double least_s = rails[usual].seconds_for(bytes, times) / kClearlySooner;
  for (size_t rail = 0; rail < rails.size(); ++rail) {
    const double seconds = rails[rail].seconds_for(bytes, times);
    if (seconds >= least_s) continue;
    found = rail;
    least_s = seconds;
  }
  return found;
}

uint8_t RailMeter::next_for_small(std::span<RailMeter> rails, size_t bytes, int64_t now_ns) {
  const double times = times_assumed(rails);
  double least_s = rails[0].seconds_for(bytes, times);
  for (const RailMeter& rail : rails) least_s = std::min(least_s, rail.seconds_for(bytes, times));
  RailMeter* found = nullptr;
  double found_s = 0, most_s = 0;
  for (RailMeter& rail : rails) {
    if (rail.seconds_for(bytes, times) > kMostTimesLonger * least_s) {
      if (rail.is_left_out()) continue;
      return static_cast<uint8_t>(&rail - rails.data());
    }
    most_s = std::max(most_s, rail.small_s_);
    const double end_s = rail.seconds_until_through(bytes, times, now_ns);
    const bool is_alike =
        found != nullptr && end_s <= kNearlySoonest * found_s && found_s <= kNearlySoonest * end_s;
    const bool is_next = is_alike ? rail.small_s_ < found->small_s_ : end_s < found_s;
    if (found != nullptr && !is_next) continue;
    found = &rail;
    found_s = end_s;
  }
  found->give_small(8 * static_cast<double>(bytes) / found->rate_for_small(times), most_s, now_ns);
  return static_cast<uint8_t>(found - rails.data());
}

// What a rail did not carry while it was dead is not made up for.
void RailMeter::give_small(double seconds, double most_s, int64_t now_ns) {
  small_s_ = std::max(small_s_, most_s - kMostSmallDebtS) + seconds;
  const int64_t until_ns =
      std::max(small_until_ns_, now_ns) + static_cast<int64_t>(seconds * kNsPerS);
  // The rate may be higher than is known.
  small_until_ns_ = std::min(until_ns, now_ns + static_cast<int64_t>(kMostSmallDebtS * kNsPerS));
}

bool RailMeter::take_large(size_t bytes, int64_t now_ns) {
  if (!credit_.has_credit(now_ns)) {
    note_yielding();
    return false;
  }
  if (!budget_.take(bytes, now_ns)) return false;
  credit_.take(bytes);
  return true;
}

size_t RailMeter::may_read(size_t most) {
  if (!arrivals_.is_limited()) return most;
  if (arrivals_.has_credit(now_ns())) return std::min(most, kSharedFrameBytes);
  note_yielding();
  return 0;
}

bool RailMeter::is_left_out() {
  num_left_out_ = has_been_told_ || num_left_out_ < kMostLeftOut ? num_left_out_ + 1 : 0;
  return num_left_out_ > 0;
}

}  // namespace dmlcomm::transport
