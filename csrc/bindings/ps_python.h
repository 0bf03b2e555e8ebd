// The parameter server's side of Python objects: a rendezvous of two callables, a rule that is a
// Python function, and tensors as memory. The first two take the interpreter's lock when they are
// called.
#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <memory>

#include "ps/client_memory.h"
#include "ps/rules/rule.h"
#include "transport/rendezvous.h"

namespace dmlcomm::bindings {

// set(key, value) and get(key) -> value, which waits as long as it sees fit.
std::shared_ptr<transport::Rendezvous> make_rendezvous(pybind11::object set, pybind11::object get);

// function(weights, gradient, state, step): one-dimensional arrays of one piece, to be changed in
// place; a dict that belongs to the piece; the number of the update, from 1. The function's
// attribute state_arrays names arrays in that dict, each a slot of the rule: of the weights' type
// and size, zeros at first, and part of checkpoints. Other entries are not.
std::shared_ptr<const ps::Rule> make_python_rule(pybind11::object function);

// The memory that operations of the client read or write, as Python holds it.
struct TensorMemory {
  ps::Buffers buffers;
};

// The usual case, NumPy arrays that can be used where they are, is recognised in one call, since
// every operation asks: in Python it takes as long as a small message does on its way.
void bind_memory(pybind11::module_& module);

}  // namespace dmlcomm::bindings
