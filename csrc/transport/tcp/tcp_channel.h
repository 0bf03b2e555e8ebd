// TcpChannel: a channel over one TCP connection.
#pragma once

#include <optional>
#include <string>

#include "base/unique_fd.h"
#include "transport/channel.h"
#include "transport/tcp/flow.h"
#include "transport/tcp/ticket_mark.h"

namespace dmlcomm::transport::tcp {

class TcpChannel final : public Channel {
 public:
  // `queue_bytes`: see limit_queue(); 0: no limit but that of the socket. `description` names both
  // ends and the interface.
  TcpChannel(UniqueFd fd, TicketMarking marking, size_t queue_bytes, std::string description);

  Result<size_t> write(const iovec* parts, int num_parts) override;
  void set_ticket(uint8_t ticket) override;
  bool shows_tickets() const override { return mark_.has_value(); }
  void mark_class(uint8_t dscp) override;
  Result<size_t> read(const iovec* parts, int num_parts) override;
  bool maybe_readable() const override { return readable_; }
  bool maybe_writable() const override { return writable_; }
  Flow flow() const override { return flow_of(fd_.get(), queue_bytes_); }
  std::string congestion() const override;
  void limit_queue(size_t bytes) override;
  void limit_arrivals(size_t bytes) override;
  int descriptor() const override { return fd_.get(); }
  void descriptor_ready(Ready ready) override;
  void shut_down() override;
  std::string description() const override { return description_; }

 private:
  const UniqueFd fd_;
  const std::string description_;
  std::optional<TicketMark> mark_;
  size_t queue_bytes_;
  // Since epoll said so, and until the system call leaves nothing to read, or no room to write.
  bool readable_ = true;
  bool writable_ = true;
  bool ended_ = false;  // epoll does not say again that there is an end to read
};

}  // namespace dmlcomm::transport::tcp
