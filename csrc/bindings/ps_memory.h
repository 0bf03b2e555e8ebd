// Tensors as memory, for the parameter server's client. The usual case, NumPy arrays that can be
// used where they are, is recognised here in one call, since every operation asks: in Python it
// takes as long as a small message does on its way.
#pragma once

#include <pybind11/pybind11.h>

#include "ps/client_memory.h"

namespace dmlcomm::bindings {

// The memory that operations of the client read or write, as Python holds it.
struct TensorMemory {
  ps::Buffers buffers;
};

void bind_memory(pybind11::module_& module);

}  // namespace dmlcomm::bindings
