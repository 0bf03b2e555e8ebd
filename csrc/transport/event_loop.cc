#include "transport/event_loop.h"

#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

namespace dmlcomm::transport {
namespace {

constexpr int kMostEvents = 256;  // of one look

}  // namespace

Status EventLoop::open() {
  epoll_ = UniqueFd(epoll_create1(EPOLL_CLOEXEC));
  doorbell_ = UniqueFd(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  if (!epoll_.valid() || !doorbell_.valid()) {
    return errno_status(StatusCode::io_error, "epoll and eventfd", errno);
  }
  const uint32_t own = add([this](uint32_t, Channel::Ready) {
    uint64_t count;
    (void)!read(doorbell_.get(), &count, sizeof(count));
  });
  return watch(doorbell_.get(), own, 0, false);
}

uint32_t EventLoop::add(Source source) {
  sources_.push_back(std::move(source));
  return static_cast<uint32_t>(sources_.size() - 1);
}

Status EventLoop::watch(int fd, uint32_t source, uint32_t number, bool edge) {
  epoll_event event{};
  event.events = edge ? EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET : EPOLLIN;
  event.data.u64 = uint64_t{source} << 32 | number;
  if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) == 0) return Status();
  return errno_status(StatusCode::io_error, "epoll_ctl", errno);
}

void EventLoop::forget(int fd) { epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr); }

void EventLoop::look() {
  epoll_event events[kMostEvents];
  const int count = epoll_wait(epoll_.get(), events, kMostEvents, 0);
  for (int i = 0; i < count; ++i) {
    const uint32_t what = events[i].events;
    sources_[events[i].data.u64 >> 32](static_cast<uint32_t>(events[i].data.u64),
                                       {.readable = (what & ~static_cast<uint32_t>(EPOLLOUT)) != 0,
                                        .writable = (what & EPOLLOUT) != 0,
                                        .ended = (what & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0});
  }
}

void EventLoop::sleep(int timeout_ms, const std::function<bool()>& has_news) {
  sleeping_->store(1, std::memory_order_relaxed);
  // Pairs with the fence in ring(): either we see what was brought, or it is seen that we sleep.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (!has_news()) {
    pollfd ready{epoll_.get(), POLLIN, 0};
    (void)poll(&ready, 1, timeout_ms);
  }
  sleeping_->store(0, std::memory_order_relaxed);
}

void EventLoop::ring(int doorbell, const std::atomic<uint32_t>& sleeping) {
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (sleeping.load(std::memory_order_relaxed) == 0) return;
  const uint64_t one = 1;
  // A full counter (EAGAIN) wakes as well.
  (void)!write(doorbell, &one, sizeof(one));
}

}  // namespace dmlcomm::transport
