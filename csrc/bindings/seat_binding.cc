#include "bindings/bindings.h"

#include <pybind11/stl.h>

#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "base/config.h"
#include "proxy/arbiter.h"
#include "proxy/shares.h"
#include "transport/job_seat.h"

namespace py = pybind11;

namespace dmlcomm::bindings {
namespace {

using proxy::Arbiter;
using proxy::Arbitration;
using proxy::SharePolicy;
using transport::JobSeat;
using transport::NicCredit;

std::shared_ptr<JobSeat> take(Result<std::shared_ptr<JobSeat>> seat) {
  if (seat.ok()) return *seat;
  if (seat.status().code() == StatusCode::invalid_argument) {
    throw py::value_error(seat.status().message());
  }
  PyErr_SetString(PyExc_OSError, seat.status().message().c_str());
  throw py::error_already_set();
}

py::list status_of(Arbiter& arbiter) {
  std::vector<Arbitration::JobStatus> jobs;
  {
    const py::gil_scoped_release release;
    jobs = arbiter.status();
  }
  py::list found;
  for (const Arbitration::JobStatus& job : jobs) {
    py::list nics;
    for (const Arbitration::NicStatus& nic : job.nics) {
      nics.append(py::dict(
          py::arg("interface") = nic.interface, py::arg("sent_bytes") = nic.out.bytes,
          py::arg("share") = nic.out.share, py::arg("is_behind") = nic.out.is_behind,
          py::arg("received_bytes") = nic.in.bytes, py::arg("share_of_arrivals") = nic.in.share,
          py::arg("is_read_behind") = nic.in.is_behind));
    }
    found.append(py::dict(py::arg("job") = job.name, py::arg("priority") = job.priority,
                          py::arg("processes") = job.num_seats,
                          py::arg("sent_bytes") = job.sent_bytes,
                          py::arg("received_bytes") = job.received_bytes, py::arg("nics") = nics));
  }
  return found;
}

}  // namespace

void bind_seat(py::module_& module) {
  const auto release = py::call_guard<py::gil_scoped_release>();
  py::class_<JobSeat, std::shared_ptr<JobSeat>>(
      module, "JobSeat", "The memory in which this process and the arbiter of its host meet.")
      .def(py::init([] { return take(JobSeat::create()); }))
      .def("fileno", &JobSeat::descriptor)
      .def_property_readonly("reason", &JobSeat::reason,
                             "Why the job has lost its place; empty while it has it.");
  py::class_<Arbiter>(module, "Arbiter", "Shares the NICs of this host among jobs.")
      .def(py::init([](bool is_strict, double floor, unsigned num_classes) {
             return std::make_unique<Arbiter>(SharePolicy{is_strict, floor, num_classes});
           }),
           py::arg("is_strict") = SharePolicy().is_strict, py::arg("floor") = SharePolicy().floor,
           py::arg("num_classes") = SharePolicy().num_classes)
      .def(
          "add",
          [](Arbiter& arbiter, const std::string& job, unsigned priority, int fd) {
            return arbiter.add(job, priority, take(JobSeat::open(fd)));
          },
          py::arg("job"), py::arg("priority"), py::arg("fd"),
          "The number of the seat, whose memory the descriptor is.")
      .def("remove", &Arbiter::remove, py::arg("seat"), release)
      .def("drop", &Arbiter::drop, py::arg("job"), py::arg("priority"), py::arg("reason"), release)
      .def("status", &status_of)
      .def("close", &Arbiter::close, release);
  py::class_<Arbitration>(
      module, "Arbitration",
      "What an Arbiter does in each round, for simulations with their own time.")
      .def(py::init([](bool is_strict, double floor) {
             return std::make_unique<Arbitration>(SharePolicy{is_strict, floor});
           }),
           py::arg("is_strict") = SharePolicy().is_strict, py::arg("floor") = SharePolicy().floor)
      .def("add", &Arbitration::add, py::arg("job"), py::arg("priority"), py::arg("seat"))
      .def("round", &Arbitration::round, py::arg("now_ns"));
  py::class_<NicCredit>(module, "NicCredit",
                        "One direction of a seat's NIC, as those who send or read see it.")
      .def(py::init([](std::shared_ptr<JobSeat> seat, std::string_view interface, bool arrives) {
             const auto direction = arrives ? transport::Direction::in : transport::Direction::out;
             return std::make_unique<NicCredit>(std::move(seat), interface, direction);
           }),
           py::arg("seat"), py::arg("interface"), py::arg("arrives") = false)
      .def("is_limited", &NicCredit::is_limited)
      .def("has_credit", &NicCredit::has_credit, py::arg("now_ns"))
      .def("take", &NicCredit::take, py::arg("bytes"))
      .def("count", &NicCredit::count, py::arg("bytes"))
      .def("begin", &NicCredit::begin, py::arg("num_bytes"))
      .def("end", &NicCredit::end, py::arg("num_bytes"))
      .def("measured", &NicCredit::measured, py::arg("bits_per_second"));
  module.def("dscp_of_class", &proxy::dscp_of_class, py::arg("priority"), py::arg("num_classes"),
             "Of packets of jobs with this priority, where the fabric has so many classes.");
  module.def(
      "nic_shares",
      [](const std::vector<unsigned>& priorities, bool is_strict, double floor) {
        return proxy::shares_of(priorities, {is_strict, floor});
      },
      py::arg("priorities"), py::arg("is_strict") = SharePolicy().is_strict,
      py::arg("floor") = SharePolicy().floor,
      "By job that sends over a NIC, the part that the arbiter gives it.");
  module.attr("MAX_PRIORITY") = kMaxJobPriority;
  module.attr("DEFAULT_PRIORITY") = kDefaultJobPriority;
}

}  // namespace dmlcomm::bindings
