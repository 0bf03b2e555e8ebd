#include "engine/metrics_server.h"

#include <poll.h>
#include <pthread.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <span>
#include <thread>
#include <utility>

#include "base/clock.h"
#include "base/exceptions.h"
#include "base/fork_guard.h"
#include "base/str_cat.h"
#include "transport/socket.h"
#include "transport/tcp/socket.h"

namespace dmlcomm::engine {
namespace {

constexpr double kRequestSeconds = 1.0;
constexpr size_t kMaxRequestBytes = 16 * 1024;
constexpr std::string_view kEndOfHead = "\r\n\r\n";

// False once the time is over.
bool wait_for(int fd, short events, const Deadline& deadline) {
  while (!deadline.expired()) {
    pollfd entry{fd, events, 0};
    if (poll(&entry, 1, deadline.remaining_poll_ms()) > 0) return true;
  }
  return false;
}

// Empty if it is too long, or does not come in time.
std::string read_head(int fd, const Deadline& deadline) {
  std::string head;
  std::array<std::byte, 1024> bytes;
  while (head.size() < kMaxRequestBytes && wait_for(fd, POLLIN, deadline)) {
    const Result<size_t> some = transport::recv_some(fd, bytes, nullptr);
    if (!some.ok()) break;
    head.append(reinterpret_cast<const char*>(bytes.data()), *some);
    if (head.find(kEndOfHead) != std::string::npos) return head;
  }
  return "";
}

void write_all(int fd, const std::string& text, const Deadline& deadline) {
  std::span<const std::byte> left = std::as_bytes(std::span(text));
  while (!left.empty() && wait_for(fd, POLLOUT, deadline)) {
    const Result<size_t> sent = transport::send_some(fd, left, {});
    if (!sent.ok()) return;
    left = left.subspan(*sent);
  }
}

std::string http_text(std::string_view status, std::string_view body) {
  return str_cat("HTTP/1.1 ", status,
                 "\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\nContent-Length: ",
                 body.size(), "\r\nConnection: close\r\n\r\n", body);
}

void serve(int listener, const std::function<std::string()>& text) {
  pthread_setname_np(pthread_self(), "dmlcomm-metrics");
  for (;;) {
    pollfd entry{listener, POLLIN, 0};
    (void)poll(&entry, 1, -1);
    const Status status = without_exceptions([&] {
      Result<UniqueFd> fd = transport::accept_from(listener);
      if (!fd.ok() || !fd->valid()) return fd.status();
      const Deadline deadline = Deadline::after_s(kRequestSeconds);
      const std::string head = read_head(fd->get(), deadline);
      if (!head.empty()) write_all(fd->get(), http_answer(head, text), deadline);
      return Status();
    });
    // Without a descriptor or memory: the next one may find them.
    if (!status.ok()) std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
}

}  // namespace

std::string http_answer(std::string_view head, const std::function<std::string()>& text) {
  constexpr std::string_view kGet = "GET ";
  if (!head.starts_with(kGet)) return http_text("405 Method Not Allowed", "expected GET\n");
  head.remove_prefix(kGet.size());
  const std::string_view path = head.substr(0, head.find_first_of(" ?\r"));
  if (path != "/metrics") return http_text("404 Not Found", "the metrics are under /metrics\n");
  return http_text("200 OK", text());
}

Status serve_metrics(const std::string& host, uint16_t port, std::function<std::string()> text) {
  Result<transport::tcp::Listener> listener =
      transport::tcp::listen_on(host, {port, port}, transport::tcp::SocketOptions{});
  if (!listener.ok()) return listener.status();
  const int fd = listener->fd.release();  // as long as the process
  drop_in_children(fd);
  std::thread thread;
  DMLCOMM_RETURN_IF_ERROR(start_thread(&thread, [fd, text = std::move(text)] { serve(fd, text); }));
  thread.detach();
  return Status();
}

}  // namespace dmlcomm::engine
