#include "transport/tcp/tcp_channel.h"

#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <utility>

#include "base/str_cat.h"

namespace dmlcomm::transport::tcp {

TcpChannel::TcpChannel(UniqueFd fd, std::string description)
    : fd_(std::move(fd)), description_(std::move(description)) {}

void TcpChannel::descriptor_ready(Ready ready) {
  readable_ |= ready.readable;
  writable_ |= ready.writable;
  ended_ |= ready.ended;
}

Result<size_t> TcpChannel::write(const iovec* parts, int num_parts) {
  if (!writable_) return size_t{0};
  msghdr message{};
  message.msg_iov = const_cast<iovec*>(parts);
  message.msg_iovlen = static_cast<size_t>(num_parts);
  const ssize_t sent = sendmsg(fd_.get(), &message, MSG_NOSIGNAL);
  if (sent >= 0) return static_cast<size_t>(sent);
  if (errno == EAGAIN) writable_ = false;
  if (errno == EAGAIN || errno == EINTR) return size_t{0};
  return errno_status(StatusCode::peer_lost, str_cat("write to ", description_), errno);
}

Result<size_t> TcpChannel::read(const iovec* parts, int num_parts) {
  if (!readable_) return size_t{0};
  msghdr message{};
  message.msg_iov = const_cast<iovec*>(parts);
  message.msg_iovlen = static_cast<size_t>(num_parts);
  size_t wanted = 0;
  for (int i = 0; i < num_parts; ++i) wanted += parts[i].iov_len;
  const ssize_t got = recvmsg(fd_.get(), &message, 0);
  if (got > 0) {
    // Less than was asked for is all there is: what comes later is an event.
    readable_ = ended_ || static_cast<size_t>(got) == wanted;
    return static_cast<size_t>(got);
  }
  if (got < 0 && errno == EINTR) return size_t{0};
  if (got < 0 && errno == EAGAIN) {
    readable_ = false;
    return size_t{0};
  }
  if (got == 0) return Status(StatusCode::peer_lost, "it closed the connection; has it ended?");
  return errno_status(StatusCode::peer_lost, str_cat("read from ", description_), errno);
}

Channel::Confirmed TcpChannel::confirmed() const {
  tcp_info info{};
  socklen_t length = sizeof(info);
  if (getsockopt(fd_.get(), IPPROTO_TCP, TCP_INFO, &info, &length) != 0) return {};
  return {info.tcpi_unacked > 0, info.tcpi_bytes_acked};
}

void TcpChannel::shut_down() { shutdown(fd_.get(), SHUT_WR); }

}  // namespace dmlcomm::transport::tcp
