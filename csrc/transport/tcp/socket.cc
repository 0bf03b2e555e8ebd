#include "transport/tcp/socket.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <thread>

#include "base/clock.h"
#include "base/log.h"
#include "base/str_cat.h"
#include "transport/socket.h"
#include "transport/tcp/device.h"

namespace dmlcomm::transport::tcp {
namespace {

// Of each direction. 10 Gb/s times 3 ms; and as much as stays in the L2 cache.
constexpr uint64_t kNetworkBufferBytes = 4u << 20;
constexpr uint64_t kLoopbackBufferBytes = 512 * 1024;
constexpr size_t kMaxCongestionName = 16;
// Between two looks for a free port.
constexpr auto kPortPause = std::chrono::milliseconds(50);
constexpr const char* kNoPort =
    "; no port of net.ipv4.ip_local_port_range is free: end what takes so many, or widen it";

struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t length = 0;
  sockaddr* get() { return reinterpret_cast<sockaddr*>(&storage); }
};

Result<SocketAddress> parse_address(const std::string& text, uint16_t port) {
  SocketAddress address;
  auto* v4 = reinterpret_cast<sockaddr_in*>(&address.storage);
  auto* v6 = reinterpret_cast<sockaddr_in6*>(&address.storage);
  if (inet_pton(AF_INET, text.c_str(), &v4->sin_addr) == 1) {
    v4->sin_family = AF_INET;
    v4->sin_port = htons(port);
    address.length = sizeof(*v4);
  } else if (inet_pton(AF_INET6, text.c_str(), &v6->sin6_addr) == 1) {
    v6->sin6_family = AF_INET6;
    v6->sin6_port = htons(port);
    address.length = sizeof(*v6);
  } else {
    return Status(StatusCode::invalid_argument,
                  str_cat("'", text, "' is no numeric IPv4 or IPv6 address"));
  }
  return address;
}

void set_option(int fd, int level, int name, int value) {
  (void)setsockopt(fd, level, name, &value, sizeof(value));
}

// False where the kernel does not have it, or not for this user.
bool set_congestion(int fd, const std::string& algorithm) {
  return setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, algorithm.data(),
                    static_cast<socklen_t>(algorithm.size())) == 0;
}

// The kernel goes on pacing a socket that has begun with a pacing algorithm (bbr). That throttles
// loopback: one stream reaches 17 Gb/s with bbr, 50 with cubic. Between hosts a collective comes in
// bursts, whose rate bbr estimates too high, and differently for connections that share a port:
// docs/topology.md, congestion control.
// reno, which every kernel has and permits, is as fast as cubic there.
Status choose_congestion(int fd, const std::string& address, const std::string& wanted) {
  if (wanted.empty()) {
    if (is_loopback(address)) {
      prefer_congestion(fd, {"cubic"});
    } else if (congestion_of(fd).starts_with("bbr")) {
      prefer_congestion(fd, {"cubic", "reno"});
    }
    return Status();
  }
  if (set_congestion(fd, wanted)) return Status();
  return Status(StatusCode::invalid_argument,
                str_cat("DMLCOMM_TCP_CONGESTION=", wanted, ": ", std::strerror(errno),
                        "; this user may have those in "
                        "/proc/sys/net/ipv4/tcp_allowed_congestion_control (`dmlcomm doctor`)"));
}

// Options that must be set before the connection is made; accepted connections inherit them.
Status prepare(int fd, const std::string& address, const SocketOptions& options) {
  DMLCOMM_RETURN_IF_ERROR(choose_congestion(fd, address, options.congestion));
  // The window scale is agreed on while connecting.
  const uint64_t bytes = options.buffer_bytes.value_or(is_loopback(address) ? kLoopbackBufferBytes
                                                                            : kNetworkBufferBytes);
  if (bytes == 0) return Status();
  set_option(fd, SOL_SOCKET, SO_SNDBUF, static_cast<int>(bytes));
  set_option(fd, SOL_SOCKET, SO_RCVBUF, static_cast<int>(bytes));
  return Status();
}

uint16_t port_of(int fd) {
  SocketAddress bound;
  bound.length = sizeof(bound.storage);
  if (getsockname(fd, bound.get(), &bound.length) != 0) return 0;
  return ntohs(bound.storage.ss_family == AF_INET
                   ? reinterpret_cast<sockaddr_in*>(&bound.storage)->sin_port
                   : reinterpret_cast<sockaddr_in6*>(&bound.storage)->sin6_port);
}

Result<Listener> as_listener(Result<UniqueFd> fd) {
  if (!fd.ok()) return fd.status();
  const uint16_t port = port_of(fd->get());
  return Listener{std::move(*fd), port};
}

Status with_advice(const Status& status, bool is_full) {
  return is_full ? Status(status.code(), status.message(), kNoPort) : status;
}

// `is_full`: the kernel has no port left, which may change.
Result<UniqueFd> try_listen(const std::string& address, uint16_t port, const SocketOptions& options,
                            bool* is_full) {
  Result<SocketAddress> parsed = parse_address(address, port);
  if (!parsed.ok()) return parsed.status();
  Result<UniqueFd> fd = open_socket(parsed->storage.ss_family);
  if (!fd.ok()) return fd;
  set_option(fd->get(), SOL_SOCKET, SO_REUSEADDR, 1);
  DMLCOMM_RETURN_IF_ERROR(prepare(fd->get(), address, options));
  if (bind(fd->get(), parsed->get(), parsed->length) != 0 || listen(fd->get(), kBacklog) != 0) {
    const int error = errno;
    const std::string what = str_cat("listen on ", address, " port ", port);
    *is_full = port == 0 && error == EADDRINUSE;
    return with_advice(errno_status(StatusCode::io_error, what, error), *is_full);
  }
  return fd;
}

// On any port. Programs that take all ports for a while must not end a job that begins meanwhile.
Result<UniqueFd> listen_patiently(const std::string& address, const SocketOptions& options,
                                  const PortWait& wait) {
  for (bool has_waited = false;; has_waited = true) {
    bool is_full = false;
    Result<UniqueFd> fd = try_listen(address, 0, options, &is_full);
    if (!is_full) return fd;
    if (wait.end.expired()) {
      return Status(fd.status().code(), fd.status().message(), "; tried for ", wait.seconds,
                    " s (DMLCOMM_PEER_TIMEOUT_S)");
    }
    if (!has_waited) log_warning(fd.status().message(), "; trying again");
    std::this_thread::sleep_for(kPortPause);
  }
}

}  // namespace

Result<Listener> listen_on(const std::string& address, PortRange ports,
                           const SocketOptions& options, const PortWait& wait) {
  if (ports.first == 0) return as_listener(listen_patiently(address, options, wait));
  Status last;
  for (uint32_t port = ports.first; port <= ports.last; ++port) {
    bool is_full = false;
    Result<UniqueFd> fd = try_listen(address, static_cast<uint16_t>(port), options, &is_full);
    if (fd.ok()) return as_listener(std::move(fd));
    last = fd.status();
    if (last.code() == StatusCode::invalid_argument) return last;
  }
  if (ports.first == ports.last) return last;
  return Status(StatusCode::io_error,
                str_cat("no free port in DMLCOMM_PORT_RANGE ", ports.first, "-", ports.last, " on ",
                        address, ": ", last.message(), "; widen the range"));
}

Result<UniqueFd> begin_connect(const std::string& interface, const std::string& local,
                               const std::string& address, uint16_t port,
                               const SocketOptions& options) {
  Result<SocketAddress> to = parse_address(address, port);
  if (!to.ok()) return to.status();
  Result<UniqueFd> fd = open_socket(to->storage.ss_family);
  if (!fd.ok()) return fd;
  DMLCOMM_RETURN_IF_ERROR(prepare(fd->get(), address, options));
  if (!local.empty()) {
    Result<SocketAddress> from = parse_address(local, 0);
    if (!from.ok()) return from.status();
    set_option(fd->get(), IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, 1);
    if (bind(fd->get(), from->get(), from->length) != 0) {
      return errno_status(StatusCode::io_error, str_cat("bind to ", local), errno);
    }
  }
  hold_to_card(fd->get(), interface, address);
  if (connect(fd->get(), to->get(), to->length) != 0 && errno != EINPROGRESS) {
    const int error = errno;
    const StatusCode code = error == ECONNREFUSED ? StatusCode::peer_lost : StatusCode::io_error;
    const std::string what = str_cat("connect from ", local, " to ", address, " port ", port);
    return with_advice(errno_status(code, what, error), error == EADDRNOTAVAIL);
  }
  return fd;
}

bool is_loopback(const std::string& address) {
  return address.starts_with("127.") || address == "::1";
}

void tune(int fd, const SocketOptions& options) {
  set_option(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  // A route may have brought another algorithm than the listener's.
  if (!options.congestion.empty()) (void)set_congestion(fd, options.congestion);
}

std::string congestion_of(int fd) {
  char name[kMaxCongestionName + 1] = {};
  socklen_t length = kMaxCongestionName;
  (void)getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name, &length);
  return name;
}

void prefer_congestion(int fd, std::initializer_list<const char*> names) {
  for (const char* name : names) {
    if (set_congestion(fd, name)) return;
  }
}

void limit_queue(int fd, size_t bytes) {
  set_option(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, static_cast<int>(bytes));
}

// The kernel's autotuning widens TCP_WINDOW_CLAMP again, and leaves a buffer that was set as it is.
void limit_window(int fd, size_t bytes) {
  set_option(fd, SOL_SOCKET, SO_RCVBUF, static_cast<int>(bytes));
}

void confirm_now(int fd) { set_option(fd, IPPROTO_TCP, TCP_QUICKACK, 1); }

size_t send_buffer_bytes(int fd) {
  int bytes = 0;
  socklen_t length = sizeof(bytes);
  (void)getsockopt(fd, SOL_SOCKET, SO_SNDBUF, &bytes, &length);
  return static_cast<size_t>(bytes);
}

bool has_carrier(const std::string& interface) {
  UniqueFd fd(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  ifreq request{};
  interface.copy(request.ifr_name, sizeof(request.ifr_name) - 1);
  if (!fd.valid() || ioctl(fd.get(), SIOCGIFFLAGS, &request) != 0) return errno != ENODEV;
  return (request.ifr_flags & IFF_RUNNING) != 0;
}

}  // namespace dmlcomm::transport::tcp
