// Lives: how often each server of a job was lost and came back, as one process knows it.
//
// A server's life is even while it is used, and odd once it is lost for all: 0 at first, 1 lost, 2
// back, and so on. It only grows, so the larger one of two statements is the newer. Workers
// and servers tell each other with every command and answer. Of two servers that have each found
// the other lost, one gives way, and takes back what it has found.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <mutex>

namespace dmlcomm::ps {

constexpr uint32_t kMaxServers = 64;
using Lives = std::array<uint8_t, kMaxServers>;
// A server that would exceed it stays lost.
constexpr uint8_t kLastLife = UINT8_MAX;

constexpr bool is_lost(uint8_t life) { return life % 2 == 1; }

// Whether a set of servers (bit i: server i) has this one.
constexpr bool has_server(uint64_t servers, uint32_t server) {
  return (servers >> server & 1) != 0;
}

// Any thread may call.
class LifeTable {
 public:
  // Takes over what is newer; returns the set of those servers.
  uint64_t learn(const Lives& told) {
    std::lock_guard lock(mutex_);
    return take_over(told);
  }
  // As learn(), from one that uses `server`: if it knows only an earlier life of that, it may hold
  // another one as lost to which `server` has given way since.
  uint64_t learn_from_user(const Lives& told, uint32_t server) {
    std::lock_guard lock(mutex_);
    return told[server] < lives_[server] ? 0 : take_over(told);
  }
  // Whether the life has changed from `from` to the next one.
  bool advance(uint32_t server, uint8_t from) {
    std::lock_guard lock(mutex_);
    if (lives_[server] != from || from == kLastLife) return false;
    ++lives_[server];
    note_lost();
    return true;
  }
  // For a process that begins anew with what another one knows. False if it has heard anything
  // since `known`.
  bool replace(const Lives& known, const Lives& told) {
    std::lock_guard lock(mutex_);
    if (lives_ != known) return false;
    lives_ = told;
    note_lost();
    return true;
  }
  Lives all() const {
    std::lock_guard lock(mutex_);
    return lives_;
  }
  uint8_t of(uint32_t server) const { return all()[server]; }
  // The set of servers that are lost.
  uint64_t lost() const { return lost_.load(); }

 private:
  uint64_t take_over(const Lives& told) {
    uint64_t news = 0;
    for (uint32_t server = 0; server < kMaxServers; ++server) {
      if (told[server] > lives_[server]) news |= uint64_t{1} << server;
      lives_[server] = std::max(lives_[server], told[server]);
    }
    note_lost();
    return news;
  }
  void note_lost() {
    uint64_t lost = 0;
    for (uint32_t server = 0; server < kMaxServers; ++server) {
      if (is_lost(lives_[server])) lost |= uint64_t{1} << server;
    }
    lost_.store(lost);
  }

  mutable std::mutex mutex_;
  Lives lives_{};  // guarded by mutex_
  std::atomic<uint64_t> lost_{0};
};

}  // namespace dmlcomm::ps
