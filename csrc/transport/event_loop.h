// EventLoop: a communicator waits here, for descriptors and for its doorbell.
//
// A thread that is about to sleep sets a word that its wakers can see, looks for news once more,
// and then waits in the kernel. A waker publishes its news, reads that word, and rings the doorbell
// only if it is set. So no ring is in vain, and no news is missed.
//
// All calls require the progress lock, except wake(), which any thread may call.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <vector>

#include "base/status.h"
#include "base/unique_fd.h"
#include "transport/channel.h"

namespace dmlcomm::transport {

class EventLoop {
 public:
  // Called for each descriptor that is ready, with the number that was given to watch(). The call
  // may come late: the owner may have given up the number since.
  using Source = std::function<void(uint32_t number, Channel::Ready ready)>;

  Status open();
  // Adds a source, which stays as long as the loop.
  uint32_t add(Source source);
  // Watches until the descriptor is closed, or forgotten. With `edge` only changes are reported.
  Status watch(int fd, uint32_t source, uint32_t number, bool edge);
  void forget(int fd);

  // Calls the sources of all descriptors that are ready now.
  void look();
  // Sleeps until a descriptor is ready, wake(), or `timeout_ms`. `has_news` is called after all
  // wakers can see that we sleep; true cancels the sleep.
  void sleep(int timeout_ms, const std::function<bool()>& has_news);
  void wake() { ring(doorbell_.get(), *sleeping_); }

  // For peers that share memory with us: `word` shows that we sleep, a write to doorbell() wakes.
  void show_sleep_in(std::atomic<uint32_t>& word) { sleeping_ = &word; }
  int doorbell() const { return doorbell_.get(); }
  // Wakes the loop behind these two if it sleeps.
  static void ring(int doorbell, const std::atomic<uint32_t>& sleeping);

 private:
  UniqueFd epoll_;
  UniqueFd doorbell_;
  std::atomic<uint32_t> own_sleeping_{0};
  std::atomic<uint32_t>* sleeping_ = &own_sleeping_;
  std::vector<Source> sources_;
};

}  // namespace dmlcomm::transport
