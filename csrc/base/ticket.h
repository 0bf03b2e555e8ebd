// Ticket: how soon an operation is needed, 0 to 255. Of the operations that wait for a rail, that
// with the smallest ticket goes first.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>

namespace dmlcomm {

constexpr uint8_t kDefaultTicket = 128;

// Connections per rail and peer beside the usual one, at most: each for a class of urgent tickets.
constexpr unsigned kMaxTicketConnections = 4;

// The class of an operation where there are `num_classes`: 0 for the default ticket and later ones,
// 1 for the most urgent ones. One doubling of the ticket each, and the last class has the others:
// of three, 1 has ticket 0, 2 has 1, and 3 has 2 to 127.
constexpr size_t ticket_class(uint8_t ticket, size_t num_classes) {
  if (num_classes == 0 || ticket >= kDefaultTicket) return 0;
  return 1 + std::min<size_t>(static_cast<size_t>(std::bit_width(ticket)), num_classes - 1);
}

}  // namespace dmlcomm
