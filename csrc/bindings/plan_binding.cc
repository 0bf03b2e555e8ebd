#include "bindings/plan_binding.h"

#include <pybind11/stl.h>

#include <cstdint>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "base/check.h"
#include "schedule/planner.h"
#include "schedule/price/pricing.h"
#include "topology/topology.h"
#include "transport/address.h"

namespace py = pybind11;

namespace dmlcomm::bindings {

namespace {

using schedule::OpKind;
using schedule::Price;
using schedule::PricedBy;
using topology::Topology;

// Rank r is on host r / ranks_per_host. An empty grid is a flat network; one of one level, too.
Topology make_topology(uint32_t num_hosts, uint32_t ranks_per_host, std::vector<uint32_t> grid,
                       std::vector<double> rail_betas_s_per_byte) {
  if (num_hosts == 0 || ranks_per_host == 0 || rail_betas_s_per_byte.empty()) {
    throw py::value_error("a topology needs hosts, ranks and rails");
  }
  std::vector<uint32_t> hosts(size_t{num_hosts} * ranks_per_host);
  for (size_t rank = 0; rank < hosts.size(); ++rank) {
    hosts[rank] = static_cast<uint32_t>(rank / ranks_per_host);
  }
  const auto num_rails = static_cast<uint32_t>(rail_betas_s_per_byte.size());
  const double bits_per_second = 8 / rail_betas_s_per_byte.front();
  if (num_hosts == 1) {
    return topology::single_host(ranks_per_host, true);
  }
  Topology topology =
      grid.size() < 2
          ? topology::flat_network(std::move(hosts), num_rails, bits_per_second, true)
          : topology::grid_network(std::move(hosts), std::move(grid), bits_per_second, true);
  topology.rail_betas_s_per_byte = std::move(rail_betas_s_per_byte);
  const Status status = topology::validate(topology);
  if (!status.ok()) throw py::value_error(status.message());
  return topology;
}

const char* name_of(PricedBy priced_by) {
  switch (priced_by) {
    case PricedBy::simulation: return "simulation";
    case PricedBy::lockstep: return "lockstep";
    case PricedBy::formula: return "formula";
  }
  DMLCOMM_CHECK(false);
}

OpKind kind_of(const std::string& op) {
  for (const auto& algorithm : schedule::all_algorithms()) {
    if (op == schedule::to_string(algorithm.kind)) return algorithm.kind;
  }
  throw py::value_error("there is no operation \"" + op + "\"");
}

std::vector<Price> price(const Topology& topology, const std::string& op, uint64_t bytes,
                         uint32_t element_bytes) {
  const OpKind kind = kind_of(op);
  py::gil_scoped_release released;
  auto prices = schedule::price_all(topology, kind, bytes, element_bytes);
  if (prices.ok()) return std::move(*prices);
  py::gil_scoped_acquire acquired;
  throw py::value_error(prices.status().message());
}

// Raises ValueError unless some communicator would accept `text` as the content of a plan.
void check_plan(const std::string& text) {
  const auto choices = schedule::parse_sized_choices(text);
  if (!choices.ok()) throw py::value_error(choices.status().message());
}

void bind_topology(py::module_& module) {
  py::class_<Topology>(module, "Topology", "Hosts, their network, and what it costs (seconds).")
      .def(py::init(&make_topology), py::arg("num_hosts"), py::arg("ranks_per_host"),
           py::arg("grid"), py::arg("rail_betas_s_per_byte"),
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
      .def_readwrite("gamma_s_per_byte", &Topology::gamma_s_per_byte, "Reducing or copying.")
      .def_readwrite("contention", &Topology::contention,
                     "How many times as long a NIC takes to which several hosts send at once.")
      .def_readwrite("relay_s", &Topology::relay_s, "What each relaying host adds to a latency.")
      .def_readonly("rail_betas_s_per_byte", &Topology::rail_betas_s_per_byte)
      .def(
          "on_shared_cores", &topology::on_shared_cores, py::arg("ranks_per_core"),
          "The same network of hosts of one kernel, where so many ranks share a core, as in a lab; "
          "unchanged where each rank has one.")
      .def_property_readonly("num_ranks", &Topology::num_ranks);
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
  py::class_<Price>(module, "Price", "What one algorithm takes.")
      .def_property_readonly("name", [](const Price& p) { return p.algorithm->name; })
      .def_readonly("seconds", &Price::seconds)
      .def_property_readonly(
          "priced_by", [](const Price& p) { return name_of(p.priced_by); },
          "\"simulation\" of all ranks, \"lockstep\" (of one that stands for all) or \"formula\".")
      .def_property_readonly("messages", counted(&schedule::Traffic::messages),
                             "Sent by the rank that sends most; None where it was not counted.")
      .def_property_readonly("rounds", counted(&schedule::Traffic::rounds),
                             "The longest chain of messages that wait for each other, or None.")
      .def_property_readonly("rail_bytes", counted(&schedule::Traffic::rail_bytes),
                             "By rail: sent by the busiest host there, or None.");
  module.def("price", &price, py::arg("topology"), py::arg("op"), py::arg("num_bytes"),
             py::arg("element_bytes"),
             "What each algorithm of `op` that applies there takes, in the order of the table. "
             "Raises ValueError.");
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
