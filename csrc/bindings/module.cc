// dmlcomm._core: what Python needs of the core without torch. Plain data in and out; no tensor and
// no payload passes here.
#include <pybind11/pybind11.h>

#include "bindings/bindings.h"
#include "engine/inspector.h"
#include "kernels/reduce.h"
#include "transport/address.h"

PYBIND11_MODULE(_core, module) {
  module.doc() = "The dmlcomm core without torch: configuration, probes, names.";
  module.attr("VERSION") = DMLCOMM_VERSION;
  module.attr("TORCH_VERSION") = DMLCOMM_TORCH;
  module.def("isa_name", &dmlcomm::kernels::isa_name,
             "The instruction set the reduction kernels run on.");
  module.def(
      "host_id", [] { return dmlcomm::transport::local_host_address().host_id; },
      "Names this host among the ranks: same kernel and same network namespace, same text.");
  module.def(
      "host_name", [] { return dmlcomm::transport::local_host_address().host_name; },
      "What messages call this host.");
  module.def("inspector_folder", &dmlcomm::engine::Inspector::folder,
             "Where processes of this user can be asked for the state of their groups.");
  dmlcomm::bindings::bind_config(module);
  dmlcomm::bindings::bind_algorithms(module);
  dmlcomm::bindings::bind_plan(module);
  dmlcomm::bindings::bind_probes(module);
  dmlcomm::bindings::bind_quantize(module);
  dmlcomm::bindings::bind_seat(module);
  dmlcomm::bindings::bind_ps(module);
  dmlcomm::bindings::bind_sim(module);
  dmlcomm::bindings::bind_ticket(module);
}
