// dmlcomm._core: what Python needs of the core without torch. Plain data in and out; no tensor and
// no payload passes here.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "bindings/algorithms_binding.h"
#include "bindings/config_binding.h"
#include "bindings/plan_binding.h"
#include "bindings/probes.h"
#include "bindings/ps_binding.h"
#include "kernels/reduce.h"
#include "transport/address.h"

namespace py = pybind11;

namespace dmlcomm::bindings {

namespace {

void bind_probes(py::module_& module) {
  py::class_<ProbeResult>(module, "ProbeResult", "Whether something works on this machine.")
      .def_readonly("works", &ProbeResult::works)
      .def_readonly("detail", &ProbeResult::detail, "How, or the reason why not.");
  py::class_<CongestionControls>(module, "CongestionControls")
      .def_readonly("system_default", &CongestionControls::system_default)
      .def_readonly("usable", &CongestionControls::usable)
      .def_readonly("refused", &CongestionControls::refused);

  // The probes fork; with the interpreter's lock released, another thread's wait does not delay
  // them.
  const auto release = py::call_guard<py::gil_scoped_release>();
  module.def("probe_shared_memory", &probe_shared_memory, release);
  module.def("probe_single_copy", &probe_single_copy, release);
  module.def("probe_tcp", &probe_tcp, release);
  module.def("probe_congestion_controls", &probe_congestion_controls, release);
}

}  // namespace

}  // namespace dmlcomm::bindings

PYBIND11_MODULE(_core, module) {
  module.doc() = "The dmlcomm core without torch: configuration, probes, names.";
  module.def("isa_name", &dmlcomm::kernels::isa_name,
             "The instruction set the reduction kernels run on.");
  module.def(
      "host_id", [] { return dmlcomm::transport::local_host_address().host_id; },
      "Names this host among the ranks: same kernel and same network namespace, same text.");
  module.def(
      "host_name", [] { return dmlcomm::transport::local_host_address().host_name; },
      "What messages call this host.");
  dmlcomm::bindings::bind_config(module);
  dmlcomm::bindings::bind_algorithms(module);
  dmlcomm::bindings::bind_plan(module);
  dmlcomm::bindings::bind_probes(module);
  dmlcomm::bindings::bind_parameter_server(module);
}
