// The parts of the module; <name>_binding.cc has bind_<name>().
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>

namespace dmlcomm::bindings {

// algorithms() and check_algorithm(): the legal values of DMLCOMM_ALGORITHM.
void bind_algorithms(pybind11::module_& module);
// config() and config_defaults(): the process's Config.
void bind_config(pybind11::module_& module);
// Topology, compare(), verify() and check_plan(): the core for `dmlcomm plan`.
void bind_plan(pybind11::module_& module);
// Probes, which find out by trial which features this machine permits.
void bind_probes(pybind11::module_& module);
// The parameter server: plain data in and out, memory by address.
void bind_ps(pybind11::module_& module);
// Quantization, for the communication hooks.
void bind_quantize(pybind11::module_& module);
// Seats at the arbiter of a host, and the arbiter.
void bind_seat(pybind11::module_& module);
// The flow simulator: max_min_rates() and Simulation.
void bind_sim(pybind11::module_& module);
// The ticket of the calling thread.
void bind_ticket(pybind11::module_& module);
uint8_t current_ticket();

}  // namespace dmlcomm::bindings
