#include "transport/tcp/tcp_channel.h"

#include <sys/socket.h>

#include <cerrno>
#include <utility>

#include "base/str_cat.h"
#include "transport/tcp/socket.h"

namespace dmlcomm::transport::tcp {

TcpChannel::TcpChannel(UniqueFd fd, TicketMarking marking, size_t queue_bytes,
                       std::string description)
    : fd_(std::move(fd)),
      description_(std::move(description)),
      queue_bytes_(send_buffer_bytes(fd_.get())) {
  if (marking != TicketMarking::none) mark_.emplace(marking, fd_.get());
  if (queue_bytes > 0) limit_queue(queue_bytes);
}

void TcpChannel::set_ticket(uint8_t ticket) {
  if (mark_) mark_->set_ticket(ticket);
}

void TcpChannel::mark_class(uint8_t dscp) {
  if (mark_ && mark_->marking() == TicketMarking::dscp) mark_.reset();
  set_dscp(fd_.get(), dscp);
}

void TcpChannel::limit_arrivals(size_t bytes) { limit_window(fd_.get(), bytes); }

void TcpChannel::limit_queue(size_t bytes) {
  queue_bytes_ = bytes;
  tcp::limit_queue(fd_.get(), bytes);
}

void TcpChannel::descriptor_ready(Ready ready) {
  readable_ |= ready.readable;
  writable_ |= ready.writable;
  // The peer waits until our kernel confirms its end, which could take a while on its own.
  if (ready.ended && !std::exchange(ended_, true)) confirm_now(fd_.get());
}

Result<size_t> TcpChannel::write(const iovec* parts, int num_parts) {
  if (!writable_) return size_t{0};
  if (mark_) mark_->before_write();
  msghdr message{};
  message.msg_iov = const_cast<iovec*>(parts);
  message.msg_iovlen = static_cast<size_t>(num_parts);
  const ssize_t sent = sendmsg(fd_.get(), &message, MSG_NOSIGNAL);
  if (sent >= 0) {
    if (mark_) mark_->wrote(static_cast<uint64_t>(sent));
    return static_cast<size_t>(sent);
  }
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

std::string TcpChannel::congestion() const { return congestion_of(fd_.get()); }

void TcpChannel::shut_down() { shutdown(fd_.get(), SHUT_WR); }

}  // namespace dmlcomm::transport::tcp
