#include "transport/rail_meter.h"

#include <algorithm>
#include <utility>

#include "base/clock.h"

namespace dmlcomm::transport {
namespace {

// Fewer bytes tell of latencies only.
constexpr uint64_t kLeastBytes = 16 * 1024;
// A period that messages would fill to this share without their bytes tells only that the rail has
// at least its rate.
constexpr double kMostLatency = 0.5;

}  // namespace

void RailMeter::add(const Channel::Flow& before, const Channel::Flow& now) {
  period_.bytes += now.confirmed_bytes - before.confirmed_bytes;
  period_.busy_us += static_cast<int64_t>(now.busy_us - before.busy_us);
  bytes_resent_ += now.bytes_resent - before.bytes_resent;
  if (now.min_rtt_us == 0) return;
  min_rtt_us_ = min_rtt_us_ == 0 ? now.min_rtt_us : std::min(min_rtt_us_, now.min_rtt_us);
}

void RailMeter::end_period(int64_t active_ns, double latency_s, bool is_even) {
  period_.active_ns += active_ns;
  period_.latency_s += latency_s;
  period_.is_even = period_.is_even && is_even;
  if (!period_.is_even && knows_even_) period_ = {};
  if (period_.bytes < kLeastBytes) return;
  const Period period = period_;
  period_ = {};
  const double busy_s = static_cast<double>(period.busy_us) * 1e-6;
  const double seconds = std::min(static_cast<double>(period.active_ns) / kNsPerS, busy_s);
  if (seconds <= 0) return;
  const double rate = 8 * static_cast<double>(period.bytes) / seconds;
  if (period.latency_s > kMostLatency * seconds && rate <= bits_per_second()) return;
  if (period.is_even && !std::exchange(knows_even_, true)) rates_ = {};
  rates_[num_periods_++ % rates_.size()] = rate;
}

double RailMeter::bits_per_second() const {
  return *std::max_element(rates_.begin(), rates_.end());
}

}  // namespace dmlcomm::transport
