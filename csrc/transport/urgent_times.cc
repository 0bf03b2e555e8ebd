#include "transport/urgent_times.h"

#include <algorithm>
#include <map>
#include <mutex>

#include "base/clock.h"

namespace dmlcomm::transport {
namespace {

// Urgent messages come in rounds: for so long after one the next one may come.
constexpr int64_t kUrgentNs = 10 * kNsPerMs;

}  // namespace

std::shared_ptr<UrgentTimes> UrgentTimes::of(const std::string& interface) {
  static std::mutex mutex;
  static auto& all = *new std::map<std::string, std::weak_ptr<UrgentTimes>>;
  const std::lock_guard lock(mutex);
  std::weak_ptr<UrgentTimes>& place = all[interface];
  std::shared_ptr<UrgentTimes> found = place.lock();
  if (found == nullptr) place = found = std::make_shared<UrgentTimes>();
  return found;
}

bool UrgentTimes::is_before(size_t ticket_class, int64_t now_ns) const {
  const size_t num_before = ticket_class == 0 ? last_ns_.size() : ticket_class - 1;
  const auto is_recent = [&](const std::atomic<int64_t>& last) {
    const int64_t ns = last.load(std::memory_order_relaxed);
    return ns != 0 && now_ns - ns < kUrgentNs;
  };
  const auto begin = last_ns_.begin();
  return std::any_of(begin, begin + static_cast<ptrdiff_t>(num_before), is_recent);
}

}  // namespace dmlcomm::transport
