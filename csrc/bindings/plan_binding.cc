#include "bindings/bindings.h"

#include <pybind11/stl.h>

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/config.h"
#include "engine/local/board.h"
#include "schedule/planner.h"
#include "schedule/price/pricing.h"
#include "schedule/price/task_list.h"
#include "topology/topology.h"
#include "transport/address.h"

namespace py = pybind11;

namespace dmlcomm::bindings {

namespace {

using schedule::Comparison;
using schedule::OpKind;
using schedule::Price;
using schedule::PricedBy;
using topology::Topology;

void check_legal(const Status& status) {
  if (!status.ok()) throw py::value_error(status.message());
}

// Calls without the interpreter's lock.
template <typename Call>
auto released(Call call) {
  const py::gil_scoped_release release;
  return call();
}

// Rank r is on host r / ranks_per_host. An empty grid is a flat network; one of one level, too.
Topology make_topology(uint32_t num_hosts, uint32_t ranks_per_host, std::vector<uint32_t> grid,
                       const std::vector<uint64_t>& rates_bps) {
  if (num_hosts == 0 || ranks_per_host == 0 || rates_bps.empty()) {
    throw py::value_error("a topology needs hosts, ranks and rails");
  }
  if (num_hosts == 1) {
    const Config config;
    Topology host = topology::single_host(ranks_per_host, true);
    host.memory = engine::shared_memory(ranks_per_host, config.shm_board_bytes,
                                        config.shm_single_copy, config.share_tensors);
    return host;
  }
  std::vector<uint32_t> hosts(size_t{num_hosts} * ranks_per_host);
  for (size_t rank = 0; rank < hosts.size(); ++rank) {
    hosts[rank] = static_cast<uint32_t>(rank / ranks_per_host);
  }
  if (grid.size() < 2) grid.clear();
  Topology topology = topology::job_network(
      std::move(hosts), static_cast<uint32_t>(rates_bps.size()), std::move(grid), rates_bps);
  check_legal(topology::validate(topology));
  return topology;
}

const char* name_of(PricedBy priced_by) {
  switch (priced_by) {
    case PricedBy::simulation: return "simulation";
    case PricedBy::lockstep: return "lockstep";
    case PricedBy::estimate: return "estimate";
  }
  DMLCOMM_CHECK(false);
}

OpKind kind_of(const std::string& op) {
  std::set<std::string> known;
  for (const auto& algorithm : schedule::all_algorithms()) {
    if (op == schedule::to_string(algorithm.kind)) return algorithm.kind;
    known.insert(schedule::to_string(algorithm.kind));
  }
  std::string all;
  for (const std::string& name : known) all += (all.empty() ? "" : ", ") + name;
  throw py::value_error("there is no operation \"" + op + "\": expected one of " + all);
}

Comparison compare(const Topology& topology, const Topology& job, const std::string& op,
                   uint64_t bytes, uint32_t element_bytes) {
  const OpKind kind = kind_of(op);
  auto comparison =
      released([&] { return schedule::compare(topology, job, kind, bytes, element_bytes); });
  check_legal(comparison.status());
  return std::move(*comparison);
}

void verify(const Topology& topology, const std::string& op) {
  const OpKind kind = kind_of(op);
  check_legal(released([&] { return schedule::verify_all(topology, kind); }));
}

schedule::TaskList list_tasks(const Topology& topology, const Topology& job, const std::string& op,
                              uint64_t bytes, uint32_t element_bytes,
                              const std::string& algorithm) {
  const OpKind kind = kind_of(op);
  auto list = released(
      [&] { return schedule::list_tasks(topology, job, kind, bytes, element_bytes, algorithm); });
  check_legal(list.status());
  return std::move(*list);
}

const char* name_of(schedule::Task::Kind kind) {
  switch (kind) {
    case schedule::Task::Kind::begin: return "begin";
    case schedule::Task::Kind::post: return "post";
    case schedule::Task::Kind::message: return "message";
    case schedule::Task::Kind::work: return "work";
    case schedule::Task::Kind::end: return "end";
  }
  DMLCOMM_CHECK(false);
}

// (host that sends, host that receives, rail), which is None for a message over all of them.
using HopTuple = std::tuple<uint32_t, uint32_t, std::optional<uint8_t>>;

std::vector<HopTuple> hops_of(const schedule::Task& task) {
  std::vector<HopTuple> hops;
  for (const schedule::Hop& hop : task.hops) {
    const bool is_striped = hop.rail == schedule::kAnyRail;
    hops.emplace_back(hop.from, hop.to, is_striped ? std::nullopt : std::optional(hop.rail));
  }
  return hops;
}

// Raises ValueError unless some communicator would accept `text` as the content of a plan.
void check_plan(const std::string& text) {
  check_legal(schedule::parse_sized_choices(text).status());
}

void bind_topology(py::module_& module) {
  py::class_<Topology>(module, "Topology", "Hosts, their network, and what it costs (seconds).")
      .def(py::init(&make_topology), py::arg("num_hosts"), py::arg("ranks_per_host"),
           py::arg("grid"), py::arg("rates_bps"),
           "Rank r is on host r // ranks_per_host; an empty grid is a flat network. The other "
           "prices are those the planner assumes. Raises ValueError.")
      .def_property(
          "alpha_s", [](const Topology& t) { return t.inter_host.alpha_s; },
          [](Topology& t, double value) { t.inter_host.alpha_s = value; },
          "Latency of a message between hosts, without what its sender is busy for.")
      .def_property(
          "overhead_s", [](const Topology& t) { return t.inter_host.overhead_s; },
          [](Topology& t, double value) { t.inter_host.overhead_s = value; },
          "What posting a message between hosts occupies its sender for.")
      .def_readwrite("contention", &Topology::contention,
                     "How many times as long a NIC takes to which several hosts send at once.")
      .def_property_readonly(
          "memory_bps", [](const Topology& t) { return 8 / t.intra_host.beta_s_per_byte; },
          "Of messages inside a host, in bits per second: each rank's, to read and to write.")
      .def_readonly("single_copy", &Topology::single_copy, "Inside a host only receivers copy.")
      .def_readonly("ranks_per_core", &Topology::ranks_per_core, "Of a shared kernel; 0 of none.")
      .def(
          "on_shared_cores", &topology::on_shared_cores, py::arg("ranks_per_core"),
          "The same network of hosts of one kernel, where so many ranks share a core, as in a lab; "
          "unchanged where each rank has one.");
}

void bind_task_list(py::module_& module) {
  py::class_<schedule::Task>(module, "Task", "One of the tasks that schedules are made of.")
      .def_property_readonly(
          "kind", [](const schedule::Task& t) { return name_of(t.kind); },
          "\"begin\" and \"end\" of each rank, \"post\", \"message\", \"work\".")
      .def_readonly("rank", &schedule::Task::rank, "Of a message: its sender.")
      .def_readonly("receiver", &schedule::Task::receiver, "Of a message.")
      .def_readonly("seconds", &schedule::Task::seconds, "Of a message: its latency.")
      .def_readonly("bytes", &schedule::Task::bytes)
      .def_property_readonly("hops", &hops_of,
                             "Of a message: (from host, to host, rail or None for all of them).")
      .def_readonly("after", &schedule::Task::after, "Indexes of tasks that stand before it.");
  py::class_<schedule::TaskList>(module, "TaskList", "The schedules of all ranks.")
      .def_readonly("algorithm", &schedule::TaskList::algorithm)
      .def_readonly("tasks", &schedule::TaskList::tasks);
  module.def("list_tasks", &list_tasks, py::arg("topology"), py::arg("job"), py::arg("op"),
             py::arg("num_bytes"), py::arg("element_bytes"), py::arg("algorithm"),
             "The schedules of an operation as tasks; an empty `algorithm` is what a job takes on "
             "`job`, the same network as the job knows it. Raises ValueError.");
}

// A property of what the schedules were counted for; None where they were not.
template <typename Value>
auto counted(Value schedule::Traffic::*field) {
  return [field](const Price& price) -> std::optional<Value> {
    if (!price.traffic) return std::nullopt;
    return (*price.traffic).*field;
  };
}

}  // namespace

void bind_plan(py::module_& module) {
  bind_topology(module);
  bind_task_list(module);
  py::class_<Price>(module, "Price", "What one algorithm takes.")
      .def_property_readonly("name", [](const Price& p) { return p.algorithm->name; })
      .def_property_readonly(
          "is_schedule", [](const Price& p) { return p.algorithm->is_schedule(); },
          "False of the ways through the memory of one host, which send no messages.")
      .def_readonly("seconds", &Price::seconds)
      .def_property_readonly(
          "priced_by", [](const Price& p) { return name_of(p.priced_by); },
          "\"simulation\" of all ranks, \"lockstep\" (of one that stands for all) or \"estimate\".")
      .def_readonly("estimate_s", &Price::estimate_s, "The closed form, which a job compares.")
      .def_property_readonly("messages", counted(&schedule::Traffic::messages),
                             "Sent by the rank that sends most; None where it was not counted.")
      .def_property_readonly("rounds", counted(&schedule::Traffic::rounds),
                             "The longest chain of messages that wait for each other, or None.")
      .def_property_readonly("rail_bytes", counted(&schedule::Traffic::rail_bytes),
                             "By rail: sent by the busiest host there, or None.");
  py::class_<Comparison>(module, "Comparison", "What the algorithms of an operation take.")
      .def_readonly("prices", &Comparison::prices, "In the order of the table.")
      .def_readonly("chosen", &Comparison::chosen, "The index of what a job takes.")
      .def_readonly("fastest", &Comparison::fastest, "The index of the least time.");
  module.def("compare", &compare, py::arg("topology"), py::arg("job"), py::arg("op"),
             py::arg("num_bytes"), py::arg("element_bytes"),
             "What each algorithm of `op` that applies to `topology` takes there, and what a job "
             "chooses on `job`, the same network as the job knows it. Raises ValueError.");
  module.def("verify", &verify, py::arg("topology"), py::arg("op"),
             "Proves the schedules of `op` there. Raises ValueError with the first fault.");
  module.def(
      "ranks_per_shared_core",
      [](const std::vector<std::pair<std::string, int>>& ranks) {
        std::vector<transport::HostAddress> hosts(ranks.size());
        for (size_t i = 0; i < ranks.size(); ++i) {
          std::tie(hosts[i].host_id, hosts[i].num_cores) = ranks[i];
        }
        return transport::ranks_per_shared_core(hosts);
      },
      py::arg("ranks"),
      "Of the fullest kernel that several hosts share, 0 if none does. By rank: its host's id, and "
      "how many cores it may use.");
  module.def("check_plan", &check_plan, py::arg("text"),
             "Raises ValueError unless \"op:first_bytes=name,...\" is legal.");
}

}  // namespace dmlcomm::bindings
