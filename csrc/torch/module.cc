// Python module dmlcomm._c10d: makes backends and answers what torch's own bindings cannot.
#include <pybind11/chrono.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <torch/csrc/jit/python/pybind_utils.h>
#include <torch/csrc/utils/pybind.h>

#include <exception>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "schedule/op_shape.h"
#include "torch/completion_pool.h"
#include "torch/current_ticket.h"
#include "torch/errors.h"
#include "torch/process_group.h"
#include "torch/server_all_reduce.h"
#include "transport/rail_trace.h"

namespace py = pybind11;

namespace dmlcomm::adaptor {
namespace {

// How long Python's exit waits for callbacks of Futures that end with the groups.
constexpr std::chrono::seconds kExitLimit{2};

using Rails = std::vector<std::pair<std::string, std::string>>;  // interface, address

std::shared_ptr<transport::JobSeat> seat_of(int fd) {
  Result<std::shared_ptr<transport::JobSeat>> seat = transport::JobSeat::open(fd);
  if (!seat.ok()) throw CommException(seat.status());
  return *seat;
}

c10::intrusive_ptr<c10d::Backend> create(
    c10::intrusive_ptr<c10d::Store> store, int rank, int size, std::chrono::milliseconds timeout,
    std::string name, std::vector<int> global_ranks, const Rails& rails, std::vector<uint32_t> grid,
    std::vector<uint32_t> host_of_rank, bool is_whole_job, std::vector<uint64_t> rail_rates_bps,
    std::string plan, std::string algorithm, const py::object& servers, int seat, bool is_formed) {
  std::shared_ptr<ServerAllReduce> all_reduce;
  if (!servers.is_none()) all_reduce = std::make_shared<ServerAllReduce>(servers.ptr());
  const py::gil_scoped_release release;
  engine::CommunicatorOptions options;
  options.rank = rank;
  options.num_ranks = size;
  options.name = std::move(name);
  options.global_ranks = std::move(global_ranks);
  options.timeout = timeout;
  for (int r = static_cast<int>(options.global_ranks.size()); r < size; ++r) {
    options.global_ranks.push_back(r);
  }
  for (const auto& [interface, address] : rails) options.rails.push_back({interface, address});
  options.grid = std::move(grid);
  options.host_of_rank = std::move(host_of_rank);
  options.relaying = is_whole_job ? transport::Relaying::whole_job : transport::Relaying::part;
  options.rail_rates_bps = std::move(rail_rates_bps);
  options.plan = std::move(plan);
  if (seat >= 0) options.seat = seat_of(seat);
  if (process_config().ok()) {
    options.config = *process_config();
    options.config->algorithm = std::move(algorithm);
  }
  if (!is_formed) {
    return ProcessGroupDmlcomm::create_unformed(std::move(store), std::move(options));
  }
  return ProcessGroupDmlcomm::create(std::move(store), std::move(options), std::move(all_reduce));
}

ProcessGroupDmlcomm& as_dmlcomm(const c10::intrusive_ptr<c10d::Backend>& backend) {
  auto* group = dynamic_cast<ProcessGroupDmlcomm*>(backend.get());
  TORCH_CHECK_TYPE(group != nullptr, "expected a process group of backend dmlcomm, got ",
                   backend ? backend->getBackendName() : "None");
  return *group;
}

// A failure's code as errors carry it; what is no code of ours is a failure of input or output.
StatusCode code_of(const std::string& name) {
#define DMLCOMM_CODE_NAMED(code) \
  if (name == to_string(StatusCode::code)) return StatusCode::code;
  DMLCOMM_STATUS_CODES(DMLCOMM_CODE_NAMED)
#undef DMLCOMM_CODE_NAMED
  return StatusCode::io_error;
}

py::dict range_dict(const transport::RailRange& range) {
  const bool is_message = transport::is_point_to_point(range.tag);
  const auto kind = static_cast<schedule::OpKind>(range.op.kind);
  return py::dict(py::arg("interface") = range.interface, py::arg("is_sent") = range.is_sent,
                  py::arg("group") = range.job_id,
                  py::arg("operation") = is_message ? "message" : schedule::to_string(kind),
                  py::arg("sequence") = is_message ? 0 : transport::sequence_of(range.tag),
                  py::arg("bytes") = range.bytes, py::arg("begin_ns") = range.begin_ns,
                  py::arg("end_ns") = range.end_ns);
}

void bind_rail_trace(py::module_& module) {
  module.def(
      "start_rail_trace", [] { transport::RailTrace::instance().start(); },
      "From now on, remembers when bytes pass over rails.");
  module.def(
      "stop_rail_trace",
      [] {
        py::list found;
        for (const auto& range : transport::RailTrace::instance().stop()) {
          found.append(range_dict(range));
        }
        return found;
      },
      "The ranges since then; times are those of time.monotonic_ns().");
}

void bind_server_operation(py::module_& module) {
  py::class_<ServerOperation, std::shared_ptr<ServerOperation>>(
      module, "ServerOperation", "An all_reduce that the parameter servers carry out.")
      .def(
          "succeed", [](ServerOperation& operation) { operation.complete(Status()); },
          py::call_guard<py::gil_scoped_release>())
      .def(
          "fail",
          [](ServerOperation& operation, const std::string& code, const std::string& message) {
            operation.fail({code_of(code), message});
          },
          py::arg("code"), py::arg("message"), py::call_guard<py::gil_scoped_release>(),
          "Ends it with an error, and the group, too.");
}

// Without a code it is a RuntimeError.
void fail_future(const torch::jit::PythonFutureWrapper& future, const std::string& code,
                 const std::string& message) {
  future.fut->setError(code.empty() ? std::make_exception_ptr(std::runtime_error(message))
                                    : to_exception({code_of(code), message}));
}

void close_all() {
  ProcessGroupDmlcomm::close_all();
  CompletionPool::instance().drain(kExitLimit);
}

py::dict counters_dict(const transport::RailCounters& rail) {
  return py::dict(
      py::arg("interface") = rail.interface, py::arg("bytes_sent") = rail.bytes_sent,
      py::arg("bytes_received") = rail.bytes_received,
      py::arg("frames_repeated") = rail.frames_repeated, py::arg("lanes_lost") = rail.lanes_lost,
      py::arg("lanes_back") = rail.lanes_back, py::arg("bits_per_second") = rail.bits_per_second,
      py::arg("round_trip_us") = rail.round_trip_us,
      py::arg("agreed_bits_per_second") = rail.agreed_bits_per_second,
      py::arg("agreed_round_trip_us") = rail.agreed_round_trip_us,
      py::arg("agreed_message_us") = rail.agreed_message_us,
      py::arg("bytes_resent") = rail.bytes_resent, py::arg("bytes_lent") = rail.bytes_lent,
      py::arg("blocking_us") = rail.blocking_us, py::arg("congestion") = rail.congestion_names());
}

}  // namespace

PYBIND11_MODULE(_c10d, module) {
  module.doc() = "dmlcomm's backend of torch.distributed; use it through dmlcomm.";
  register_errors();
  remember_main_thread();
  find_tickets();
  module.attr("RECORDS_FLIGHTS") = FlightLog::is_available();
  // The class of what create() returns, and its base, must be known before the first call.
  py::module_::import("torch.distributed");

  py::class_<GroupOptions, c10::intrusive_ptr<GroupOptions>, c10d::Backend::Options>(
      module, "GroupOptions", "The options of a group: those of its backend, read only.")
      .def_readonly("algorithm", &GroupOptions::algorithm)
      .def_readonly("priority", &GroupOptions::priority)
      .def_readonly("is_reconfigured", &GroupOptions::is_reconfigured);
  bind_server_operation(module);
  bind_rail_trace(module);

  module.def("fail_future", &fail_future, py::arg("future"), py::arg("code"), py::arg("message"),
             py::call_guard<py::gil_scoped_release>(),
             "Ends a torch.futures.Future with an error that C++ sees, too.");
  module.def("create", &create, py::arg("store"), py::arg("rank"), py::arg("size"),
             py::arg("timeout"), py::arg("name"), py::arg("global_ranks"), py::arg("rails"),
             py::arg("grid"), py::arg("host_of_rank"), py::arg("is_whole_job"),
             py::arg("rail_rates_bps"), py::arg("plan"), py::arg("algorithm"),
             py::arg("servers") = py::none(), py::arg("seat") = -1, py::arg("is_formed") = true,
             "Makes the backend of one process group; collective over its ranks.");
  module.def(
      "set_given_options",
      [](const c10::intrusive_ptr<c10d::Backend>& backend, std::string algorithm, int priority) {
        as_dmlcomm(backend).set_given_options(std::move(algorithm), priority);
      },
      py::arg("backend"), py::arg("algorithm"), py::arg("priority"),
      "Keeps the settings that the group was made with; GroupOptions shows them.");
  module.def(
      "set_timeout",
      [](const c10::intrusive_ptr<c10d::Backend>& backend, std::chrono::milliseconds timeout) {
        as_dmlcomm(backend).setTimeout(timeout);
      },
      py::arg("backend"), py::arg("timeout"), py::call_guard<py::gil_scoped_release>(),
      "Replaces the default deadline of later operations.");
  module.def(
      "rails",
      [](const c10::intrusive_ptr<c10d::Backend>& backend) {
        std::vector<transport::RailCounters> rails;
        {
          py::gil_scoped_release release;
          rails = as_dmlcomm(backend).rails();
        }
        py::list found;
        for (const transport::RailCounters& rail : rails) found.append(counters_dict(rail));
        return found;
      },
      py::arg("backend"), "Counters of each rail of the group.");
  module.def(
      "abort",
      [](const c10::intrusive_ptr<c10d::Backend>& backend, const std::string& reason) {
        as_dmlcomm(backend).abort(reason);
      },
      py::arg("backend"), py::arg("reason"), py::call_guard<py::gil_scoped_release>(),
      "Ends every pending and later operation with AbortedError, here and on the peers.");
  module.def(
      "description",
      [](const c10::intrusive_ptr<c10d::Backend>& backend) {
        return as_dmlcomm(backend).communicator()->description();
      },
      py::arg("backend"), py::call_guard<py::gil_scoped_release>(),
      "One line: rank, host, transports and rails in use.");
  module.def("close_all", &close_all, py::call_guard<py::gil_scoped_release>(),
             "Closes every living group of this process; for the interpreter's exit.");
}

}  // namespace dmlcomm::adaptor
