// Sockets: the system calls of all connections and of Unix sockets, non-blocking.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "base/unique_fd.h"

namespace dmlcomm::transport {

// A whole job may connect to one rank at once; the kernel takes at most net.core.somaxconn.
constexpr int kBacklog = 4096;

Result<UniqueFd> open_socket(int family);
// How a connection was made that is writable now.
Status connect_result(int fd, const std::string& what);

// The next waiting connection, or an invalid descriptor if there is none; an error if one waits,
// but the process or the machine has no descriptor or memory left for it.
Result<UniqueFd> accept_from(int listener);

// Unix sockets in the abstract namespace, which belongs to the network namespace and leaves no
// file.
Result<UniqueFd> listen_unix(const std::string& name);
// Only to a process of the same user, or of root: any other has taken the name of one that ended.
Result<UniqueFd> connect_unix(const std::string& name);
// Process id of the other end as this process sees it; 0 if it is in an unknown pid namespace.
int peer_pid(int fd);
// Whether the other end runs as the same user, or as root.
bool peer_is_same_user(int fd);

// Sends or receives bytes, with descriptors beside them on Unix sockets. Returns the bytes moved, 0
// if none could be, and `peer_lost` at the end of the stream.
Result<size_t> send_some(int fd, std::span<const std::byte> bytes, std::span<const int> fds);
Result<size_t> recv_some(int fd, std::span<std::byte> bytes, std::vector<UniqueFd>* fds);

}  // namespace dmlcomm::transport
