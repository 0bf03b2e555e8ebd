// The ticket of the calling thread. dmlcomm._c10d, which has a core of its own, reads it by the
// address that current_ticket_address() gives.
#include "base/ticket.h"

#include "bindings/bindings.h"

namespace py = pybind11;

namespace dmlcomm::bindings {
namespace {

thread_local uint8_t ticket = kDefaultTicket;

}  // namespace

uint8_t current_ticket() { return ticket; }

void bind_ticket(py::module_& module) {
  module.attr("DEFAULT_TICKET") = kDefaultTicket;
  module.def("current_ticket", &current_ticket, "The ticket of this thread's operations.");
  module.def(
      "set_ticket", [](uint8_t number) { ticket = number; }, py::arg("ticket"),
      "The ticket of this thread's operations from now on.");
  module.def(
      "current_ticket_address", [] { return reinterpret_cast<uintptr_t>(&current_ticket); },
      "Of the function current_ticket(), for dmlcomm._c10d.");
}

}  // namespace dmlcomm::bindings
