// KeptPushes: copies of the pushes that only a proxy has acknowledged. A proxy may be lost with all
// that it has, so the client keeps them until a version at the server contains them, and repeats
// them over its next connection.
//
// Any thread may call; no other lock is taken within.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "ps/event_count.h"
#include "ps/wire.h"

namespace dmlcomm::ps {

struct KeptPush {
  KeptPush(const Command& pushed, const std::vector<Span>& elements) : command(pushed) {
    size_t bytes = 0;
    for (Span span : elements) bytes += span.bytes;
    memory_.reserve(bytes);  // so that spans stay where they are
    for (Span span : elements) {
      up.push_back({memory_.data() + memory_.size(), span.bytes});
      memory_.insert(memory_.end(), span.data, span.data + span.bytes);
    }
  }

  Command command;  // a push, which closes no clock
  std::vector<Span> up;

 private:
  std::vector<std::byte> memory_;
};

class KeptPushes {
 public:
  using Push = std::shared_ptr<KeptPush>;

  void add(uint32_t server, Push push) {
    std::lock_guard lock(mutex_);
    pushes_[server].push_back(std::move(push));
  }

  // All pieces at the server contain all clocks of the model before `version`.
  void forget_before(uint32_t server, uint32_t model, uint64_t version) {
    erase_if(server, [&](const Command& command) {
      return command.model == model && command.clock < version;
    });
  }

  // The server itself has this one.
  void forget(uint32_t server, uint64_t sequence) {
    erase_if(server, [&](const Command& command) { return command.sequence == sequence; });
  }

  // Of one model, in the order of clocks, and of the calls.
  std::vector<Push> of(uint32_t server, uint32_t model) const {
    std::vector<Push> found;
    {
      std::lock_guard lock(mutex_);
      const auto it = pushes_.find(server);
      if (it == pushes_.end()) return found;
      std::copy_if(it->second.begin(), it->second.end(), std::back_inserter(found),
                   [&](const Push& push) { return push->command.model == model; });
    }
    std::sort(found.begin(), found.end(), [](const Push& a, const Push& b) {
      return std::pair(a->command.clock, a->command.sequence) <
             std::pair(b->command.clock, b->command.sequence);
    });
    return found;
  }

  bool empty() const {
    std::lock_guard lock(mutex_);
    return std::all_of(pushes_.begin(), pushes_.end(),
                       [](const auto& item) { return item.second.empty(); });
  }

  // UINT64_MAX: there is none.
  uint64_t oldest_sequence() const {
    std::lock_guard lock(mutex_);
    uint64_t oldest = UINT64_MAX;
    for (const auto& [server, pushes] : pushes_) {
      for (const Push& push : pushes) oldest = std::min(oldest, push->command.sequence);
    }
    return oldest;
  }

  // Signalled when there are fewer.
  EventCount& events() { return events_; }

 private:
  template <typename Matches>
  void erase_if(uint32_t server, Matches matches) {
    {
      std::lock_guard lock(mutex_);
      const auto it = pushes_.find(server);
      if (it == pushes_.end()) return;
      std::erase_if(it->second, [&](const Push& push) { return matches(push->command); });
    }
    events_.signal();
  }

  mutable std::mutex mutex_;
  std::map<uint32_t, std::vector<Push>> pushes_;  // by server; guarded by mutex_
  EventCount events_;
};

}  // namespace dmlcomm::ps
