// UrgentTimes: when urgent messages have last left or come over a NIC, by their class. All groups
// and parameter servers of this process that share the NIC note theirs, and give way to those of
// others.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "base/ticket.h"

namespace dmlcomm::transport {

class UrgentTimes {
 public:
  // Those of `interface` in this process, as long as one of its users lives.
  static std::shared_ptr<UrgentTimes> of(const std::string& interface);

  void note(size_t ticket_class, int64_t now_ns) {
    last_ns_[ticket_class - 1].store(now_ns, std::memory_order_relaxed);
    has_any_.store(true, std::memory_order_relaxed);
  }
  bool has_any() const { return has_any_.load(std::memory_order_relaxed); }  // there has been one
  // Whether there has been one of late that goes before those of `ticket_class`; 0 is the last one.
  bool is_before(size_t ticket_class, int64_t now_ns) const;

 private:
  std::array<std::atomic<int64_t>, kMaxTicketConnections> last_ns_{};
  std::atomic<bool> has_any_ = false;
};

}  // namespace dmlcomm::transport
