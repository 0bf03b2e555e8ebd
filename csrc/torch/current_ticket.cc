#include "torch/current_ticket.h"

#include <pybind11/pybind11.h>

namespace dmlcomm::adaptor {
namespace {

using Read = uint8_t (*)();
Read read = nullptr;

}  // namespace

void find_tickets() {
  const auto core = pybind11::module_::import("dmlcomm._core");
  read = reinterpret_cast<Read>(core.attr("current_ticket_address")().cast<uintptr_t>());
}

uint8_t current_ticket() { return read(); }

}  // namespace dmlcomm::adaptor
