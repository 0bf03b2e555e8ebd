// Sockets: the system calls of TCP and Unix-domain sockets that the transport needs, non-blocking,
// with errors that name the addresses.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "base/unique_fd.h"

namespace dmlcomm::transport::tcp {

struct SocketOptions {
  std::optional<uint64_t> buffer_bytes;  // 0: the kernel's autotuning; empty: what is best here
  std::string congestion;                // empty: cubic on loopback, else the system's
};

struct PortRange {
  uint16_t first = 0;  // 0: any port
  uint16_t last = 0;
};

struct Listener {
  UniqueFd fd;
  uint16_t port = 0;
};

// Listens on a numeric IPv4 or IPv6 address, on a free port of the range.
Result<Listener> listen_on(const std::string& address, PortRange ports,
                           const SocketOptions& options);

// Begins to connect from `local` (numeric), the address of `interface`, to `address`:`port`.
// Writability tells the end of it, connect_result() how it ended.
Result<UniqueFd> begin_connect(const std::string& interface, const std::string& local,
                               const std::string& address, uint16_t port,
                               const SocketOptions& options);
Status connect_result(int fd, const std::string& what);

// The next waiting connection, or an invalid descriptor if there is none.
UniqueFd accept_from(int listener);

// Options of a connection that is used for data.
void tune(int fd, const SocketOptions& options);
// How much the kernel takes beyond what is on its way.
void limit_queue(int fd, size_t bytes);
bool is_loopback(const std::string& address);
// Whether the cable of an interface is in; true where that cannot be told.
bool has_carrier(const std::string& interface);

// Unix sockets in the abstract namespace, which belongs to the network namespace and leaves no
// file.
Result<UniqueFd> listen_unix(const std::string& name);
Result<UniqueFd> connect_unix(const std::string& name);
// Process id of the other end as this process sees it; 0 if it is in an unknown pid namespace.
int peer_pid(int fd);
// Whether the other end runs as the same user, or as root.
bool peer_is_same_user(int fd);

// Sends or receives bytes, with descriptors beside them on Unix sockets. Returns the bytes moved, 0
// if none could be, and `peer_lost` at the end of the stream.
Result<size_t> send_some(int fd, std::span<const std::byte> bytes, std::span<const int> fds);
Result<size_t> recv_some(int fd, std::span<std::byte> bytes, std::vector<UniqueFd>* fds);

}  // namespace dmlcomm::transport::tcp
