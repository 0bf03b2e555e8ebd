// Sockets of TCP: listening, connecting, and their options, with errors that name the addresses.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>

#include "base/clock.h"
#include "base/status.h"
#include "base/unique_fd.h"

namespace dmlcomm::transport::tcp {

struct SocketOptions {
  std::optional<uint64_t> buffer_bytes;  // 0: the kernel's autotuning; empty: the best value here
  std::string congestion;                // empty: cubic on loopback, else the system's
};

// How long to wait for a port where all are taken, from now on. Several calls may share one.
struct PortWait {
  double seconds = 0;
  Deadline end = Deadline::after_s(seconds);
};

struct PortRange {
  uint16_t first = 0;  // 0: any port
  uint16_t last = 0;
};

struct Listener {
  UniqueFd fd;
  uint16_t port = 0;
};

// Listens on a numeric IPv4 or IPv6 address, on a free port of the range. Where any port will do,
// and the kernel has none left, it waits for one.
Result<Listener> listen_on(const std::string& address, PortRange ports,
                           const SocketOptions& options, const PortWait& wait = {});

// Begins to connect from `local` (numeric), the address of `interface`, to `address`:`port`.
// Writability tells the end of it, connect_result() how it ended.
Result<UniqueFd> begin_connect(const std::string& interface, const std::string& local,
                               const std::string& address, uint16_t port,
                               const SocketOptions& options);

// Options of a connection that is used for data.
void tune(int fd, const SocketOptions& options);
// The congestion control that a socket has; empty if it has none.
std::string congestion_of(int fd);
// Gives a socket the first of these that the kernel has and permits to this user. It keeps its own
// where there is none.
void prefer_congestion(int fd, std::initializer_list<const char*> names);
// Limits the bytes that the kernel queues beyond those on their way.
void limit_queue(int fd, size_t bytes);
// Limits the bytes that the other end may send before some are read.
void limit_window(int fd, size_t bytes);
// The kernel confirms what has come, where it would wait for data to send with it.
void confirm_now(int fd);
// The most that the kernel keeps of what is sent.
size_t send_buffer_bytes(int fd);
bool is_loopback(const std::string& address);
// Whether the cable of an interface is in; true where that cannot be told.
bool has_carrier(const std::string& interface);

}  // namespace dmlcomm::transport::tcp
