// TicketMark: the packets of a TCP connection show switches the ticket of the bytes that they carry
// (docs/tickets.md). The kernel marks a packet when it leaves, with what the socket says then. So
// the mark follows the bytes that the kernel has not sent yet: it is that of the most urgent of
// these, because the others of the connection leave before them or with them. It is looked at when
// something is written: bytes that were written behind urgent ones, and before the next write,
// keep the urgent mark, at most as many as the send buffer holds. Bytes that are sent again have
// the mark of then.
//
// A connection whose ticket does not change makes no system call. One thread at a time calls it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <string>

#include "base/config.h"
#include "base/status.h"
#include "base/ticket.h"

namespace dmlcomm::transport::tcp {

// IPv4 option 30 with the "copied" flag, which RFC 4727 leaves to experiments; then its length and
// the ticket.
constexpr uint8_t kTicketOption = 0x9e;
constexpr uint8_t kTicketOptionBytes = 3;

// 0, no mark, for the default ticket and later ones: switches serve packets without a mark last.
// The first 32 tickets have one each from 1 on; from there on eight share one, up to 44.
uint8_t dscp_of(uint8_t ticket);
// Packets of the connection have this DSCP from now on.
void set_dscp(int fd, uint8_t dscp);

// Whether connections from `address` can be marked so; an error says what to change.
Status check_mark(TicketMarking marking, const std::string& address);

// The tickets of the bytes that the kernel has not sent, most urgent first.
class UnsentTickets {
 public:
  // Bytes of `ticket` have been given to the kernel, behind all earlier ones.
  void wrote(uint8_t ticket, uint64_t bytes);
  // The kernel has sent all bytes but the last `num_unsent`.
  void sent_all_but(uint64_t num_unsent);
  // Of the bytes of before, and of those of `ticket` that come next.
  uint8_t most_urgent_with(uint8_t ticket) const;
  // Whether bytes of `ticket` leave with another ticket's mark unless those are known to be gone.
  bool has_other_than(uint8_t ticket) const;

 private:
  // Bytes up to `end` of the stream have no ticket below `ticket`, those up to the next run's end
  // none below the next one's. Tickets and ends rise.
  struct Run {
    uint8_t ticket;
    uint64_t end;
  };
  std::deque<Run> runs_;
  uint64_t num_written_ = 0;
};

class TicketMark {
 public:
  // `fd` outlives this object.
  TicketMark(TicketMarking marking, int fd);

  TicketMarking marking() const { return marking_; }

  // The bytes of the next writes have this ticket. Those later than the default one are as it is.
  void set_ticket(uint8_t ticket) { ticket_ = std::min(ticket, kDefaultTicket); }
  // Before and after each write of the connection.
  void before_write();
  void wrote(uint64_t bytes);

 private:
  uint64_t num_unsent() const;
  void apply(uint8_t ticket) const;

  const TicketMarking marking_;
  const int fd_;
  const bool is_v6_;
  UnsentTickets unsent_;
  uint8_t ticket_ = kDefaultTicket;
  uint8_t applied_ = kDefaultTicket;
};

}  // namespace dmlcomm::transport::tcp
