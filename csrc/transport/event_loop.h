// EventLoop: where a communicator waits, for descriptors and for its doorbell.
//
// Whoever sleeps says so in a word that those who may wake it can see, looks once more whether
// there is news, and then waits in the kernel. Who brings news looks at that word, and rings the
// doorbell only if somebody sleeps. Nobody rings in vain, and no news is slept through.
//
// All calls come with the progress lock held, except wake(), which any thread may call.
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
  // Is told which of its descriptors is ready, by the number that it gave to watch(). What it says
  // may come late: the number may have been given up since.
  using Source = std::function<void(uint32_t number, Channel::Ready ready)>;

  Status open();
  // For good: sources stay as long as the loop.
  uint32_t add(Source source);
  // Until the descriptor is closed, or forgotten. With `edge` it is told of news only.
  Status watch(int fd, uint32_t source, uint32_t number, bool edge);
  void forget(int fd);

  // Tells the sources what is ready now.
  void look();
  // Until something is ready, wake(), or `timeout_ms`. `has_news` is asked after everybody can see
  // that we sleep; true cancels it.
  void sleep(int timeout_ms, const std::function<bool()>& has_news);
  void wake() { ring(doorbell_.get(), *sleeping_); }

  // For peers that share memory with us: `word` says that we sleep, writing to doorbell() wakes us.
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
