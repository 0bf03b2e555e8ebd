// Ticket: how soon an operation is needed, 0 to 255. Of the operations that wait for a rail, that
// with the smallest ticket goes first.
#pragma once

#include <cstdint>

namespace dmlcomm {

constexpr uint8_t kDefaultTicket = 128;

}  // namespace dmlcomm
