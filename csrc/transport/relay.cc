#include "transport/relay.h"

#include <algorithm>
#include <utility>

namespace dmlcomm::transport {
namespace {

// Bytes of one direction in one call, so that a busy relay does not starve the others.
constexpr size_t kBudgetBytes = 1u << 20;

}  // namespace

Relay::Relay(std::unique_ptr<Channel> first, std::unique_ptr<Channel> second)
    : ends_{std::move(first), std::move(second)},
      directions_{Direction{ends_[0].get(), ends_[1].get(), {}},
                  Direction{ends_[1].get(), ends_[0].get(), {}}} {}

bool Relay::advance(std::span<std::byte> scratch) {
  bool has_more = false;
  for (Direction& direction : directions_) has_more |= flow(direction, scratch);
  return has_more && !is_over();
}

bool Relay::is_over() const { return directions_[0].closed && directions_[1].closed; }

// True if the budget ended it.
bool Relay::flow(Direction& direction, std::span<std::byte> scratch) {
  for (size_t moved = 0; moved < kBudgetBytes && !direction.closed;) {
    if (!write_waiting(direction)) return false;
    if (direction.ended) {
      direction.closed = true;
      direction.to->shut_down();
      return false;
    }
    const iovec part{scratch.data(), scratch.size()};
    const Result<size_t> got = direction.from->read(&part, 1);
    if (!got.ok()) {
      direction.ended = true;
      continue;
    }
    if (*got == 0) {
      if (!direction.from->maybe_readable()) return false;
      continue;
    }
    moved += *got;
    const auto rest = scratch.first(*got).subspan(write(*direction.to, scratch.first(*got)));
    direction.waiting.assign(rest.begin(), rest.end());
    direction.written = 0;
  }
  return !direction.closed;
}

// True if nothing waits any more.
bool Relay::write_waiting(Direction& direction) {
  const std::span<const std::byte> waiting = direction.waiting;
  direction.written += write(*direction.to, waiting.subspan(direction.written));
  if (direction.written < direction.waiting.size()) return false;
  direction.waiting.clear();
  direction.written = 0;
  return true;
}

// Returns how many of the bytes there was room for. If the peer takes no more, these are all of
// them; what it has sent before still passes, and then the end.
size_t Relay::write(Channel& to, std::span<const std::byte> bytes) {
  size_t written = 0;
  while (written < bytes.size()) {
    const iovec part{const_cast<std::byte*>(bytes.data()) + written, bytes.size() - written};
    const Result<size_t> taken = to.write(&part, 1);
    if (!taken.ok()) return bytes.size();
    if (*taken == 0 && !to.maybe_writable()) break;
    written += *taken;
  }
  return written;
}

int64_t Relay::stalled_ns(int64_t now_ns) {
  int64_t longest = 0;
  for (Direction& direction : directions_) {
    longest = std::max(longest, direction.stall_watch.stalled_ns(*direction.to, now_ns));
  }
  return longest;
}

}  // namespace dmlcomm::transport
