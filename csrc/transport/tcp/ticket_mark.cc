#include "transport/tcp/ticket_mark.h"

#include <linux/sockios.h>
#include <netinet/in.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/str_cat.h"
#include "base/unique_fd.h"

namespace dmlcomm::transport::tcp {
namespace {

constexpr int kSharedTickets = 8;  // that have one DSCP
constexpr int kOwnTickets = 32;    // that have one each
constexpr int kDscpShift = 2;      // the two bits below are ECN's, which the kernel keeps

bool is_v6(int fd) {
  int domain = AF_INET;
  socklen_t length = sizeof(domain);
  return getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &length) == 0 && domain == AF_INET6;
}

int set_option(int fd, uint8_t ticket) {
  const uint8_t option[] = {kTicketOption, kTicketOptionBytes, ticket};
  const socklen_t length = ticket == kDefaultTicket ? 0 : sizeof(option);
  return setsockopt(fd, IPPROTO_IP, IP_OPTIONS, option, length);
}

// IP_TOS also changes the priority with which this host's own queues serve packets, by bits that
// say nothing of tickets; then the packets of one connection overtake each other.
void set_dscp(int fd, bool is_v6, uint8_t dscp) {
  const int field = dscp << kDscpShift;
  if (is_v6) {
    (void)setsockopt(fd, IPPROTO_IPV6, IPV6_TCLASS, &field, sizeof(field));
    return;
  }
  const int priority = 0;
  (void)setsockopt(fd, IPPROTO_IP, IP_TOS, &field, sizeof(field));
  (void)setsockopt(fd, SOL_SOCKET, SO_PRIORITY, &priority, sizeof(priority));
}

}  // namespace

void set_dscp(int fd, uint8_t dscp) { set_dscp(fd, is_v6(fd), dscp); }

uint8_t dscp_of(uint8_t ticket) {
  if (ticket >= kDefaultTicket) return 0;
  if (ticket < kOwnTickets) return static_cast<uint8_t>(1 + ticket);
  return static_cast<uint8_t>(1 + kOwnTickets + (ticket - kOwnTickets) / kSharedTickets);
}

Status check_mark(TicketMarking marking, const std::string& address) {
  if (marking != TicketMarking::ip_option) return Status();
  if (address.find(':') != std::string::npos) {
    return Status(StatusCode::invalid_argument, "DMLCOMM_TICKET_MARK=ip-option: ", address,
                  " is an IPv6 address, and the option is one of IPv4; take dscp, which both have");
  }
  const UniqueFd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!fd.valid() || set_option(fd.get(), 0) != 0) {
    return Status(StatusCode::invalid_argument,
                  "DMLCOMM_TICKET_MARK=ip-option: the kernel refuses ", "the option (",
                  std::strerror(errno), "): it needs root or CAP_NET_RAW; ", "dscp needs no right");
  }
  return Status();
}

void UnsentTickets::wrote(uint8_t ticket, uint64_t bytes) {
  if (bytes == 0) return;
  num_written_ += bytes;
  while (!runs_.empty() && runs_.back().ticket >= ticket) runs_.pop_back();
  runs_.push_back({ticket, num_written_});
}

void UnsentTickets::sent_all_but(uint64_t num_unsent) {
  const uint64_t num_sent = num_written_ - std::min(num_unsent, num_written_);
  while (!runs_.empty() && runs_.front().end <= num_sent) runs_.pop_front();
}

uint8_t UnsentTickets::most_urgent_with(uint8_t ticket) const {
  return runs_.empty() ? ticket : std::min(ticket, runs_.front().ticket);
}

bool UnsentTickets::has_other_than(uint8_t ticket) const {
  return !runs_.empty() && runs_.front().ticket < ticket;
}

TicketMark::TicketMark(TicketMarking marking, int fd)
    : marking_(marking), fd_(fd), is_v6_(is_v6(fd)) {}

void TicketMark::before_write() {
  if (unsent_.has_other_than(ticket_)) unsent_.sent_all_but(num_unsent());
  const uint8_t wanted = unsent_.most_urgent_with(ticket_);
  if (wanted == applied_) return;
  apply(wanted);
  applied_ = wanted;
}

void TicketMark::wrote(uint64_t bytes) { unsent_.wrote(ticket_, bytes); }

uint64_t TicketMark::num_unsent() const {
  int bytes = 0;
  return ioctl(fd_, SIOCOUTQNSD, &bytes) == 0 ? static_cast<uint64_t>(bytes) : 0;
}

// An ended connection refuses, and its next write says why.
void TicketMark::apply(uint8_t ticket) const {
  if (marking_ == TicketMarking::ip_option) {
    (void)set_option(fd_, ticket);
  } else if (dscp_of(ticket) != dscp_of(applied_)) {
    set_dscp(fd_, is_v6_, dscp_of(ticket));
  }
}

}  // namespace dmlcomm::transport::tcp
