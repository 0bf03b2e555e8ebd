#include "transport/socket.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/check.h"
#include "base/fork_guard.h"
#include "base/str_cat.h"

namespace dmlcomm::transport {
namespace {

constexpr size_t kMaxPassedFds = 4;

sockaddr_un unix_address(const std::string& name, socklen_t* length) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  // An abstract name begins with a zero byte.
  DMLCOMM_CHECK(name.size() + 1 <= sizeof(address.sun_path));
  std::memcpy(address.sun_path + 1, name.data(), name.size());
  *length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return address;
}

Result<ucred> credentials(int fd) {
  ucred result{};
  socklen_t length = sizeof(result);
  if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &result, &length) != 0) {
    return errno_status(StatusCode::io_error, "SO_PEERCRED", errno);
  }
  return result;
}

void take_fds(const msghdr& message, std::vector<UniqueFd>* fds) {
  msghdr* header = const_cast<msghdr*>(&message);
  for (cmsghdr* c = CMSG_FIRSTHDR(header); c != nullptr; c = CMSG_NXTHDR(header, c)) {
    if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int fd;
      std::memcpy(&fd, CMSG_DATA(c) + i * sizeof(int), sizeof(int));
      fds->emplace_back(fd);
      drop_in_children(fd);
    }
  }
}

}  // namespace

Result<UniqueFd> open_socket(int family) {
  UniqueFd fd(socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd.valid()) return errno_status(StatusCode::io_error, "socket", errno);
  drop_in_children(fd.get());
  return fd;
}

Status connect_result(int fd, const std::string& what) {
  int error = 0;
  socklen_t length = sizeof(error);
  if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length) != 0) error = errno;
  if (error == 0) return Status();
  return errno_status(error == ECONNREFUSED ? StatusCode::peer_lost : StatusCode::io_error, what,
                      error);
}

Result<UniqueFd> accept_from(int listener) {
  for (;;) {
    UniqueFd fd(accept4(listener, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (fd.valid()) {
      drop_in_children(fd.get());
      return fd;
    }
    switch (errno) {
      case EMFILE:
      case ENFILE:
      case ENOBUFS:
      case ENOMEM: return errno_status(StatusCode::io_error, "accept", errno);
      // Of a connection that has failed since; the next one may wait behind it.
      case ECONNABORTED:
      case EINTR:
      case EPROTO:
      case EPERM:
      case ENETDOWN:
      case ENETUNREACH:
      case EHOSTDOWN:
      case EHOSTUNREACH: continue;
      default: return UniqueFd();
    }
  }
}

Result<UniqueFd> listen_unix(const std::string& name) {
  Result<UniqueFd> fd = open_socket(AF_UNIX);
  if (!fd.ok()) return fd;
  socklen_t length;
  sockaddr_un address = unix_address(name, &length);
  if (bind(fd->get(), reinterpret_cast<sockaddr*>(&address), length) != 0 ||
      listen(fd->get(), kBacklog) != 0) {
    return errno_status(StatusCode::io_error, str_cat("listen on Unix socket @", name), errno);
  }
  return fd;
}

Result<UniqueFd> connect_unix(const std::string& name) {
  Result<UniqueFd> fd = open_socket(AF_UNIX);
  if (!fd.ok()) return fd;
  socklen_t length;
  sockaddr_un address = unix_address(name, &length);
  if (connect(fd->get(), reinterpret_cast<sockaddr*>(&address), length) != 0) {
    const int error = errno;
    return errno_status(error == ECONNREFUSED ? StatusCode::peer_lost : StatusCode::io_error,
                        str_cat("connect to Unix socket @", name), error);
  }
  if (!peer_is_same_user(fd->get())) {
    return Status(StatusCode::protocol_error, "Unix socket @", name,
                  " belongs to another user's process; nothing was sent there");
  }
  return fd;
}

int peer_pid(int fd) {
  Result<ucred> peer = credentials(fd);
  return peer.ok() ? peer->pid : 0;
}

bool peer_is_same_user(int fd) {
  Result<ucred> peer = credentials(fd);
  return peer.ok() && (peer->uid == geteuid() || peer->uid == 0);
}

Result<size_t> send_some(int fd, std::span<const std::byte> bytes, std::span<const int> fds) {
  DMLCOMM_CHECK(fds.size() <= kMaxPassedFds);
  iovec part{const_cast<std::byte*>(bytes.data()), bytes.size()};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  alignas(cmsghdr) char control[CMSG_SPACE(kMaxPassedFds * sizeof(int))] = {};
  if (!fds.empty()) {
    message.msg_control = control;
    message.msg_controllen = CMSG_SPACE(fds.size() * sizeof(int));
    cmsghdr* c = CMSG_FIRSTHDR(&message);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(fds.size() * sizeof(int));
    std::memcpy(CMSG_DATA(c), fds.data(), fds.size() * sizeof(int));
  }
  const ssize_t sent = sendmsg(fd, &message, MSG_NOSIGNAL);
  if (sent >= 0) return static_cast<size_t>(sent);
  if (errno == EAGAIN || errno == EINTR) return size_t{0};
  return errno_status(StatusCode::peer_lost, "send", errno);
}

Result<size_t> recv_some(int fd, std::span<std::byte> bytes, std::vector<UniqueFd>* fds) {
  iovec part{bytes.data(), bytes.size()};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  alignas(cmsghdr) char control[CMSG_SPACE(kMaxPassedFds * sizeof(int))] = {};
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  const ssize_t got = recvmsg(fd, &message, MSG_CMSG_CLOEXEC);
  if (got > 0) {
    take_fds(message, fds);
    return static_cast<size_t>(got);
  }
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return size_t{0};
  if (got == 0) return Status(StatusCode::peer_lost, "the connection was closed");
  return errno_status(StatusCode::peer_lost, "receive", errno);
}

}  // namespace dmlcomm::transport
