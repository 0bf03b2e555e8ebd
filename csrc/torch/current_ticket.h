// The ticket that `dmlcomm.ticket` has given the operations of the calling thread.
#pragma once

#include <cstdint>

namespace dmlcomm::adaptor {

// To be called once, before the others; requires the interpreter's lock.
void find_tickets();
uint8_t current_ticket();

}  // namespace dmlcomm::adaptor
