#include "bindings/bindings.h"

#include <pybind11/functional.h>
#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <cmath>
#include <optional>
#include <tuple>
#include <utility>

#include "base/clock.h"
#include "base/str_cat.h"
#include "bindings/ps_python.h"
#include "proxy/uplink.h"
#include "ps/client.h"
#include "ps/server.h"

namespace py = pybind11;

namespace dmlcomm::bindings {
namespace {

using proxy::Uplink;
using ps::Client;
using ps::ModelSpec;
using ps::Server;
using ps::Snapshot;
using ps::Space;

using Seat = std::shared_ptr<transport::JobSeat>;
using Rails = std::vector<std::pair<std::string, std::string>>;
const auto kRelease = py::call_guard<py::gil_scoped_release>();

std::chrono::milliseconds to_ms(double seconds) {
  return std::chrono::milliseconds(static_cast<int64_t>(std::min(seconds, 1e9) * 1000));
}

// Wrong arguments are ValueErrors, expired times TimeoutErrors, lost peers ConnectionErrors.
void check(const Status& status) {
  if (status.ok()) return;
  const py::gil_scoped_acquire gil;
  switch (status.code()) {
    case StatusCode::invalid_argument:
    case StatusCode::mismatch: PyErr_SetString(PyExc_ValueError, status.message().c_str()); break;
    case StatusCode::timeout: PyErr_SetString(PyExc_TimeoutError, status.message().c_str()); break;
    case StatusCode::peer_lost:
    case StatusCode::aborted:
    case StatusCode::io_error:
      PyErr_SetString(PyExc_ConnectionError, status.message().c_str());
      break;
    default: PyErr_SetString(PyExc_RuntimeError, status.to_string().c_str());
  }
  throw py::error_already_set();
}

// `dmlcomm inspect` shows it for as long as it lives.
template <typename T>
std::shared_ptr<T> inspected(std::shared_ptr<T> part) {
  engine::Inspector::instance().add(std::weak_ptr<engine::Inspectable>(part));
  return part;
}

template <typename T>
T take(Result<T> result) {
  check(result.status());
  return std::move(*result);
}

DType parse_dtype(const std::string& name) {
  for (size_t i = 0; i < kNumDTypes; ++i) {
    if (name == to_string(static_cast<DType>(i))) return static_cast<DType>(i);
  }
  throw py::value_error(str_cat("there is no element type '", name, "'"));
}

Space make_space(const std::string& dtype, uint64_t count, uint32_t row, const std::string& wire) {
  const DType type = parse_dtype(dtype);
  return {type, count, row, wire.empty() ? type : parse_dtype(wire)};
}

ModelSpec make_spec(std::string name, std::vector<Space> spaces, uint32_t num_servers,
                    uint32_t replicas, const std::string& apply, const std::string& reduce,
                    std::string rule, std::map<std::string, double> options) {
  if (apply != "clock" && apply != "push") {
    throw py::value_error(str_cat("apply='", apply, "'; expected 'clock' or 'push'"));
  }
  if (reduce != "mean" && reduce != "sum") {
    throw py::value_error(str_cat("reduce='", reduce, "'; expected 'mean' or 'sum'"));
  }
  ModelSpec spec;
  spec.name = std::move(name);
  spec.spaces = std::move(spaces);
  spec.num_servers = num_servers;
  spec.replicas = replicas;
  spec.apply = apply == "clock" ? ps::Apply::at_clock : ps::Apply::at_push;
  spec.combine = reduce == "mean" ? ps::Combine::mean : ps::Combine::sum;
  spec.rule = std::move(rule);
  spec.options = std::move(options);
  check(ps::check(spec));
  return spec;
}

// The process's configuration, with what a connection of the parameter server needs: it has no
// use for memory in which many ranks meet.
Config config_with(const std::string& transport) {
  check(process_config().status());
  Config config = *process_config();
  config.shm_board_bytes = 0;
  config.algorithm.clear();
  if (transport == "tcp") {
    config.transport = TransportChoice::tcp;
  } else if (transport == "shm") {
    config.transport = TransportChoice::shm;
  } else if (transport != "auto") {
    throw py::value_error(str_cat("transport='", transport, "'; expected 'auto', 'tcp' or 'shm'"));
  }
  return config;
}

std::vector<transport::RailAddress> to_rails(const Rails& rails) {
  std::vector<transport::RailAddress> addresses;
  for (const auto& [interface, address] : rails) addresses.push_back({interface, address});
  return addresses;
}

ps::Lives to_lives(const std::vector<uint8_t>& told) {
  ps::Lives lives{};
  std::copy_n(told.begin(), std::min(told.size(), lives.size()), lives.begin());
  return lives;
}

py::dict to_dict(const transport::RailCounters& rail) {
  return py::dict(
      py::arg("interface") = rail.interface, py::arg("bytes_sent") = rail.bytes_sent,
      py::arg("bytes_received") = rail.bytes_received,
      py::arg("frames_repeated") = rail.frames_repeated, py::arg("lanes_lost") = rail.lanes_lost,
      py::arg("lanes_back") = rail.lanes_back, py::arg("bits_per_second") = rail.bits_per_second,
      py::arg("round_trip_us") = rail.round_trip_us, py::arg("bytes_resent") = rail.bytes_resent,
      py::arg("blocking_us") = rail.blocking_us, py::arg("congestion") = rail.congestion_names());
}

// --- server ---

std::shared_ptr<const ps::Rule> rule_of(const ModelSpec& spec, const py::object& python_rule) {
  if (spec.rule == "python") {
    if (python_rule.is_none()) {
      throw py::value_error(str_cat("model '", spec.name,
                                    "' wants the server's Python rule, and this server has none; "
                                    "start it with --rule module:function"));
    }
    return make_python_rule(python_rule);
  }
  return take(ps::make_rule(spec.rule, spec.options));
}

void join(Server& server, uint32_t worker, const Rails& rails, int first_rail, py::object set,
          py::object get, double timeout_s, uint64_t tree, Seat seat, uint64_t incarnation) {
  auto rendezvous = make_rendezvous(std::move(set), std::move(get));
  const py::gil_scoped_release release;
  check(server.join({.other = worker,
                     .rails = to_rails(rails),
                     .first_rail = first_rail,
                     .timeout = to_ms(timeout_s),
                     .seat = seat},
                    rendezvous, tree, incarnation));
}

void create_model(Server& server, uint32_t model, const ModelSpec& spec,
                  const py::object& python_rule, uint64_t base) {
  auto rule = rule_of(spec, python_rule);
  const py::gil_scoped_release release;
  check(server.create_model(model, spec, std::move(rule), base));
}

py::dict server_status(Server& server) {
  std::vector<ps::SessionStatus> sessions;
  std::vector<ps::ModelStatus> models;
  std::vector<transport::RailCounters> rails;
  {
    const py::gil_scoped_release release;
    sessions = server.session_status();
    models = server.model_status();
    rails = server.rails();
  }
  py::list worker_list;
  for (const ps::SessionStatus& session : sessions) {
    worker_list.append(
        py::dict(py::arg("worker") = session.worker, py::arg("connected") = session.connected,
                 py::arg("reason") = session.reason, py::arg("bytes_in") = session.bytes_in,
                 py::arg("bytes_out") = session.bytes_out, py::arg("pushes") = session.pushes,
                 py::arg("pulls") = session.pulls, py::arg("queued") = session.queued,
                 py::arg("silent_s") = session.silent_s));
  }
  py::list model_list;
  for (const ps::ModelStatus& model : models) {
    model_list.append(
        py::dict(py::arg("model") = model.model, py::arg("name") = model.name,
                 py::arg("sealed") = model.sealed, py::arg("clock") = model.clock,
                 py::arg("clocks") = model.clocks, py::arg("shard_bytes") = model.shard_bytes,
                 py::arg("open_windows") = model.open_windows, py::arg("updates") = model.updates,
                 py::arg("version") = model.version, py::arg("pulls") = model.pulls.pulls,
                 py::arg("pulls_at_once") = model.pulls.at_once));
  }
  py::list rail_list;
  for (const auto& rail : rails) rail_list.append(to_dict(rail));
  return py::dict(py::arg("workers") = worker_list, py::arg("models") = model_list,
                  py::arg("rails") = rail_list);
}

// Rows of piece, worker, incarnation and sequence number.
constexpr size_t kPushColumns = 4;

py::array_t<uint64_t> pushes_of(const ps::ShardSnapshot& shard) {
  std::vector<uint64_t> numbers;
  for (size_t piece = 0; piece < shard.pushes.size(); ++piece) {
    for (const ps::AppliedPush& push : shard.pushes[piece]) {
      numbers.insert(numbers.end(), {piece, push.worker, push.incarnation, push.sequence});
    }
  }
  py::array_t<uint64_t> flat(static_cast<py::ssize_t>(numbers.size()), numbers.data());
  return flat.reshape({static_cast<py::ssize_t>(numbers.size() / kPushColumns),
                       static_cast<py::ssize_t>(kPushColumns)});
}

std::vector<std::vector<ps::AppliedPush>> to_pushes(const py::handle& memory, size_t num_pieces) {
  const py::buffer_info info = py::cast<py::buffer>(memory).request();
  const auto* numbers = static_cast<const uint64_t*>(info.ptr);
  const size_t count = static_cast<size_t>(info.size * info.itemsize) / sizeof(uint64_t);
  std::vector<std::vector<ps::AppliedPush>> pushes(num_pieces);
  for (size_t i = 0; i + kPushColumns <= count; i += kPushColumns) {
    if (numbers[i] >= num_pieces || numbers[i + 1] >= ps::kMaxWorkers) {
      throw py::value_error(str_cat("a push of worker ", numbers[i + 1], " to piece ", numbers[i],
                                    " of ", num_pieces));
    }
    pushes[numbers[i]].push_back({numbers[i + 1], numbers[i + 2], numbers[i + 3]});
  }
  return pushes;
}

// A shard's arrays as NumPy sees them, without a copy; the snapshot lives as long as they do.
py::list snapshot_shards(const std::shared_ptr<Snapshot>& snapshot) {
  py::list shards;
  for (ps::ShardSnapshot& shard : snapshot->shards) {
    auto* keeper = new std::shared_ptr<Snapshot>(snapshot);
    const py::capsule owner(keeper,
                            [](void* p) { delete static_cast<std::shared_ptr<Snapshot>*>(p); });
    py::list arrays;
    for (std::vector<std::byte>& array : shard.arrays) {
      arrays.append(py::array_t<uint8_t>({array.size()}, {1},
                                         reinterpret_cast<const uint8_t*>(array.data()), owner));
    }
    shards.append(py::dict(py::arg("shard") = shard.shard, py::arg("arrays") = arrays,
                           py::arg("steps") = shard.steps, py::arg("pushes") = pushes_of(shard)));
  }
  return shards;
}

// shards: what snapshot_shards() gave, with anything that has the buffer protocol as arrays.
void restore(Server& server, uint32_t model, const ModelSpec& spec, const py::object& python_rule,
             uint64_t clock, std::vector<uint32_t> workers, const py::list& shards) {
  Snapshot snapshot;
  snapshot.clock = clock;
  snapshot.workers = std::move(workers);
  for (const py::handle& item : shards) {
    const auto dict = py::cast<py::dict>(item);
    ps::ShardSnapshot shard;
    shard.shard = py::cast<uint32_t>(dict["shard"]);
    shard.steps = py::cast<std::vector<uint64_t>>(dict["steps"]);
    shard.pushes = to_pushes(dict["pushes"], shard.steps.size());
    for (const py::handle& array : py::cast<py::list>(dict["arrays"])) {
      const py::buffer_info info = py::cast<py::buffer>(array).request();
      const auto* bytes = static_cast<const std::byte*>(info.ptr);
      shard.arrays.emplace_back(bytes, bytes + info.size * info.itemsize);
    }
    snapshot.shards.push_back(std::move(shard));
  }
  auto rule = rule_of(spec, python_rule);
  const py::gil_scoped_release release;
  check(server.restore(model, spec, std::move(rule), snapshot));
}

py::bytes to_python(const std::vector<std::byte>& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

std::vector<std::byte> to_bytes(std::string_view text) {
  const auto* first = reinterpret_cast<const std::byte*>(text.data());
  return {first, first + text.size()};
}

std::pair<py::bytes, size_t> copy(Server& server, uint32_t model, uint32_t shard, size_t first,
                                  size_t limit) {
  std::vector<std::byte> bytes;
  size_t next = 0;
  {
    const py::gil_scoped_release release;
    next = take(server.copy(model, shard, first, limit, &bytes));
  }
  return {to_python(bytes), next};
}

void take_copy(Server& server, uint32_t model, uint32_t shard, std::string_view text) {
  const py::gil_scoped_release release;
  check(server.take_copy(model, shard, to_bytes(text)));
}

py::bytes known_pushes(Server& server, uint32_t model, uint32_t shard, uint32_t worker,
                       size_t first, size_t limit) {
  std::vector<std::byte> bytes;
  {
    const py::gil_scoped_release release;
    bytes = server.known_pushes(model, shard, worker, first, limit);
  }
  return to_python(bytes);
}

std::pair<py::bytes, size_t> copy_pushes(Server& server, uint32_t model, uint32_t shard,
                                         uint32_t worker, std::string_view known, size_t first,
                                         size_t limit) {
  std::vector<std::byte> bytes;
  size_t next = 0;
  {
    const py::gil_scoped_release release;
    next = take(server.copy_pushes(model, shard, worker, to_bytes(known), first, limit, &bytes));
  }
  return {to_python(bytes), next};
}

void take_pushes(Server& server, uint32_t model, uint32_t shard, uint32_t worker,
                 std::string_view text) {
  const py::gil_scoped_release release;
  check(server.take_pushes(model, shard, worker, to_bytes(text)));
}

using GoneWorkers = std::map<uint32_t, std::tuple<uint64_t, uint8_t, bool>>;

GoneWorkers to_python(const std::map<uint32_t, ps::Gone>& workers) {
  GoneWorkers all;
  for (const auto& [worker, gone] : workers) {
    all[worker] = {gone.incarnation, gone.life, gone.has_left};
  }
  return all;
}

void bind_data(py::module_& module) {
  py::class_<Space>(module, "PsSpace", "A run of elements of one type in a model.")
      .def(py::init(&make_space), py::arg("dtype"), py::arg("count"), py::arg("row_elements") = 0,
           py::arg("wire") = "");
  py::class_<ModelSpec>(module, "PsModelSpec", "What a model is to the parameter server.")
      .def(py::init(&make_spec), py::arg("name"), py::arg("spaces"), py::arg("num_servers"),
           py::arg("replicas") = 0, py::arg("apply") = "clock", py::arg("reduce") = "mean",
           py::arg("rule") = "assign", py::arg("options") = std::map<std::string, double>());
  py::class_<Snapshot, std::shared_ptr<Snapshot>>(module, "PsSnapshot", "A model at one clock.")
      .def_readonly("model", &Snapshot::model)
      .def_readonly("clock", &Snapshot::clock)
      .def_readonly("workers", &Snapshot::workers)
      .def("shards", &snapshot_shards);
}

using ServerClass = py::class_<Server, std::shared_ptr<Server>>;

// Lost servers, those that come back, and workers that have gone.
void bind_replicas(ServerClass& server) {
  server.def("lost_servers", &Server::lost_servers, kRelease)
      .def("lose", &Server::lose, py::arg("server"), py::arg("life"), kRelease,
           "This server has found that another one is lost: no worker uses that one any more.")
      .def("lives", &Server::lives, kRelease)
      .def(
          "learn",
          [](Server& server, const std::vector<uint8_t>& told) {
            server.learn_from_server(to_lives(told));
          },
          kRelease, py::arg("lives"))
      .def(
          "give_way",
          [](Server& server, const std::vector<uint8_t>& known, const std::vector<uint8_t>& told) {
            return server.give_way(to_lives(known), to_lives(told));
          },
          kRelease, py::arg("known"), py::arg("told"))
      .def("come_back", &Server::come_back, kRelease, py::arg("lost"))
      .def("is_filling", &Server::is_filling, kRelease)
      .def("begun", &Server::begun, kRelease)
      .def("copy", &copy, py::arg("model"), py::arg("shard"), py::arg("first"), py::arg("limit"),
           "(bytes, number of the next piece).")
      .def("take_copy", &take_copy, py::arg("model"), py::arg("shard"), py::arg("bytes"))
      .def("end_fill", &Server::end_fill, kRelease, py::arg("model"), py::arg("clocks"))
      .def("filled", &Server::filled, kRelease)
      .def(
          "unsettled", [](Server& server) { return to_python(server.unsettled()); }, kRelease)
      .def(
          "wait_unsettled",
          [](Server& server, double timeout_s) {
            return to_python(server.wait_unsettled(to_ms(timeout_s)));
          },
          kRelease, py::arg("timeout_s"))
      .def("end_worker", &Server::end_worker, kRelease, py::arg("worker"), py::arg("incarnation"),
           py::arg("reason"))
      .def("known_pushes", &known_pushes, py::arg("model"), py::arg("shard"), py::arg("worker"),
           py::arg("first"), py::arg("limit"))
      .def("copy_pushes", &copy_pushes, py::arg("model"), py::arg("shard"), py::arg("worker"),
           py::arg("known"), py::arg("first"), py::arg("limit"),
           "(bytes, number of the next piece).")
      .def("take_pushes", &take_pushes, py::arg("model"), py::arg("shard"), py::arg("worker"),
           py::arg("bytes"))
      .def("drop_settled", &Server::drop_settled, kRelease, py::arg("worker"),
           py::arg("incarnation"))
      .def("settle", &Server::settle, kRelease, py::arg("worker"), py::arg("incarnation"))
      .def(
          "refused",
          [](Server& server, uint32_t worker, uint64_t incarnation) {
            const ps::Refused refused = server.refused(worker, incarnation);
            return std::make_pair(refused.reason, refused.passes);
          },
          kRelease, py::arg("worker"), py::arg("incarnation"),
          "(why it may not join or an empty text, whether it may later).")
      .def("settled", &Server::settled, kRelease)
      .def("take_settled", &Server::take_settled, kRelease, py::arg("workers"));
}

void bind_server(py::module_& module) {
  ServerClass server(module, "PsServer", "One parameter server.");
  bind_replicas(server);
  server
      .def(py::init([](uint32_t server, uint32_t num_servers, uint32_t num_workers,
                       const std::string& transport, uint64_t window_bytes, bool settles) {
             ps::ServerOptions options{server, num_servers, num_workers, config_with(transport)};
             options.window_bytes = window_bytes;
             options.settles = settles;
             return inspected(std::make_shared<Server>(std::move(options)));
           }),
           py::arg("server"), py::arg("num_servers"), py::arg("num_workers"),
           py::arg("transport") = "auto", py::arg("window_bytes") = 0, py::arg("settles") = false)
      .def("join", &join, py::arg("worker"), py::arg("rails"), py::arg("first_rail"),
           py::arg("set"), py::arg("get"), py::arg("timeout_s"), py::arg("tree") = 0,
           py::arg("seat") = Seat(), py::arg("incarnation") = 0)
      .def("create_model", &create_model, py::arg("model"), py::arg("spec"),
           py::arg("python_rule") = py::none(), py::arg("base") = 0)
      .def(
          "seal", [](Server& server, uint32_t model) { check(server.seal(model)); }, kRelease)
      .def("is_sealed", &Server::is_sealed, kRelease)
      .def(
          "wait_sealed",
          [](Server& server, uint32_t model, double timeout_s) {
            return server.wait_sealed(model, to_ms(timeout_s));
          },
          kRelease)
      .def("status", &server_status)
      .def("set_checkpoint_every", &Server::set_checkpoint_every, kRelease)
      .def("stop_clocks", &Server::stop_clocks, kRelease,
           "Before close(): no clock but the current one ends, and both ends have a snapshot.")
      .def(
          "next_snapshot",
          [](Server& server, double timeout_s) { return server.next_snapshot(to_ms(timeout_s)); },
          kRelease)
      .def("restore", &restore, py::arg("model"), py::arg("spec"), py::arg("python_rule"),
           py::arg("clock"), py::arg("workers"), py::arg("shards"))
      .def("give_up", &Server::give_up, kRelease, py::arg("worker"))
      .def("start_up", &Server::start_up, kRelease, py::arg("expected"))
      .def("fetch_values", &Server::fetch_values, kRelease, py::arg("model"))
      .def("show_own_from", &Server::show_own_from, kRelease, py::arg("model"), py::arg("clock"))
      .def("carry", &Server::carry, kRelease, py::arg("worker"))
      .def(
          "hold",
          [](Server& server, uint32_t model, uint32_t worker) {
            const ps::Held held = server.hold(model, worker);
            return std::make_pair(held.clock, held.is_new);
          },
          kRelease, py::arg("model"), py::arg("worker"))
      .def("version", &Server::version, kRelease, py::arg("model"))
      .def("reached", &Server::reached, kRelease, py::arg("model"))
      .def("has_lost_proxy", &Server::has_lost_proxy, kRelease)
      .def("end_tree", &Server::end_tree, kRelease)
      .def("gone", &Server::gone, kRelease)
      .def("close", &Server::close, kRelease);
}

// --- proxy ---

void connect_up(Uplink& uplink, uint32_t place, uint32_t server, const Rails& rails, int first_rail,
                py::object set, py::object get, double timeout_s, Seat seat) {
  auto rendezvous = make_rendezvous(std::move(set), std::move(get));
  const py::gil_scoped_release release;
  check(uplink.connect(ps::kFirstProxy + place,
                       {.other = server,
                        .rails = to_rails(rails),
                        .first_rail = first_rail,
                        .timeout = to_ms(timeout_s),
                        .seat = seat},
                       rendezvous));
}

void bind_uplink(py::module_& module) {
  module.def(
      "check_ps_transport", [](const std::string& transport) { (void)config_with(transport); },
      py::arg("transport"), "Raises ValueError unless servers, clients and proxies can use it.");
  py::class_<Uplink, std::shared_ptr<Uplink>>(module, "ProxyUplink",
                                              "A proxy's connection to its parent.")
      .def(py::init([](const std::string& transport) {
             return std::make_shared<Uplink>(config_with(transport));
           }),
           py::arg("transport") = "auto")
      .def(
          "serve",
          [](const std::shared_ptr<Uplink>& uplink, uint32_t server, uint32_t num_servers,
             uint32_t num_workers, const std::string& transport) {
            return inspected(std::make_shared<Server>(ps::ServerOptions{
                server, num_servers, num_workers, config_with(transport), uplink}));
          },
          py::arg("server"), py::arg("num_servers"), py::arg("num_workers"),
          py::arg("transport") = "auto", "The server that those below see.")
      .def("connect", &connect_up, py::arg("place"), py::arg("server"), py::arg("rails"),
           py::arg("first_rail"), py::arg("set"), py::arg("get"), py::arg("timeout_s"),
           py::arg("seat") = Seat())
      .def(
          "check", [](const Uplink& uplink) { check(uplink.error()); }, kRelease)
      .def_property_readonly("bytes_sent", &Uplink::bytes_sent)
      .def_property_readonly("bytes_received", &Uplink::bytes_received)
      .def("close", &Uplink::close, kRelease);
}

// --- client ---

// An operation with the client that it belongs to, which it keeps alive.
struct BoundOperation {
  std::shared_ptr<Client> client;
  Client::OperationPtr operation;

  // False if `timeout_s` is over first; None waits for ever.
  bool wait(std::optional<double> timeout_s) {
    const Deadline deadline = timeout_s ? Deadline::after_s(*timeout_s) : Deadline();
    const Status status = operation->wait(deadline);
    if (status.code() == StatusCode::timeout) return false;
    check(status);
    return true;
  }
};

ps::CallOptions options_of(double learning_rate, bool wait) {
  return {.learning_rate = learning_rate, .inline_wait = wait, .ticket = current_ticket()};
}

int64_t to_staleness(std::optional<int64_t> staleness) { return staleness.value_or(ps::kNoBound); }

Client::RowMemory to_rows(uint32_t space, uintptr_t numbers, uint64_t num_rows, uintptr_t values) {
  return {space, reinterpret_cast<const int64_t*>(numbers), num_rows,
          reinterpret_cast<std::byte*>(values)};
}

void connect(const std::shared_ptr<Client>& client, uint32_t server, const Rails& rails,
             int first_rail, py::object set, py::object get, double timeout_s, bool by_proxy,
             Seat seat, uint8_t life) {
  auto rendezvous = make_rendezvous(std::move(set), std::move(get));
  const py::gil_scoped_release release;
  check(client->connect({server, to_rails(rails), first_rail, to_ms(timeout_s), by_proxy, seat},
                        rendezvous, life));
}

py::list client_rails(Client& client) {
  std::vector<std::vector<transport::RailCounters>> all;
  {
    const py::gil_scoped_release release;
    all = client.rails();
  }
  py::list servers;
  for (const auto& rails : all) {
    py::list list;
    for (const auto& rail : rails) list.append(to_dict(rail));
    servers.append(list);
  }
  return servers;
}

void bind_starts(py::class_<Client, std::shared_ptr<Client>>& bound) {
  using ClientPtr = std::shared_ptr<Client>;
  const double nan = std::nan("");
  bound
      .def(
          "start_set",
          [](const ClientPtr& client, uint32_t model, const TensorMemory& up) {
            return BoundOperation{client, take(client->set(model, up.buffers))};
          },
          kRelease, py::arg("model"), py::arg("memory"))
      .def(
          "start_push",
          [](const ClientPtr& client, uint32_t model, const TensorMemory& up, double lr,
             bool wait) {
            return BoundOperation{client,
                                  take(client->push(model, up.buffers, options_of(lr, wait)))};
          },
          kRelease, py::arg("model"), py::arg("memory"), py::arg("lr") = nan,
          py::arg("wait") = false)
      .def(
          "start_pull",
          [nan](const ClientPtr& client, uint32_t model, const TensorMemory& down,
                std::optional<int64_t> staleness, bool wait) {
            return BoundOperation{client,
                                  take(client->pull(model, down.buffers, to_staleness(staleness),
                                                    options_of(nan, wait)))};
          },
          kRelease, py::arg("model"), py::arg("memory"), py::arg("staleness"),
          py::arg("wait") = false)
      .def(
          "start_push_pull",
          [](const ClientPtr& client, uint32_t model, const TensorMemory& up,
             const TensorMemory& down, std::optional<int64_t> staleness, double lr, bool wait) {
            return BoundOperation{
                client, take(client->push_pull(model, up.buffers, down.buffers,
                                               to_staleness(staleness), options_of(lr, wait)))};
          },
          kRelease, py::arg("model"), py::arg("up"), py::arg("down"), py::arg("staleness"),
          py::arg("lr") = nan, py::arg("wait") = false)
      .def(
          "start_push_rows",
          [](const ClientPtr& client, uint32_t model, uint32_t space, uintptr_t numbers,
             uint64_t num_rows, uintptr_t values, double lr) {
            return BoundOperation{
                client, take(client->push_rows(model, to_rows(space, numbers, num_rows, values),
                                               options_of(lr, false)))};
          },
          kRelease, py::arg("model"), py::arg("space"), py::arg("numbers"), py::arg("num_rows"),
          py::arg("values"), py::arg("lr") = nan)
      .def(
          "start_pull_rows",
          [nan](const ClientPtr& client, uint32_t model, uint32_t space, uintptr_t numbers,
                uint64_t num_rows, uintptr_t values, std::optional<int64_t> staleness) {
            return BoundOperation{
                client, take(client->pull_rows(model, to_rows(space, numbers, num_rows, values),
                                               to_staleness(staleness), options_of(nan, false)))};
          },
          kRelease, py::arg("model"), py::arg("space"), py::arg("numbers"), py::arg("num_rows"),
          py::arg("values"), py::arg("staleness"));
}

void bind_client(py::module_& module) {
  py::class_<BoundOperation>(module, "PsOperation", "An operation, until it is done.")
      .def("wait", &BoundOperation::wait, kRelease, py::arg("timeout_s") = py::none(),
           "True when done, False when the time is over. ConnectionError: lost() names the servers "
           "without which it cannot end; connect() them.")
      .def(
          "done", [](BoundOperation& bound) { return bound.operation->done(); }, kRelease)
      .def(
          "lost", [](BoundOperation& bound) { return bound.operation->lost(); }, kRelease)
      .def(
          "abandon", [](BoundOperation& bound) { bound.operation->abandon(); }, kRelease)
      .def("retry", [](BoundOperation& bound) { bound.client->retry(bound.operation); }, kRelease);
  py::class_<Client, std::shared_ptr<Client>> bound(module, "PsClient", "A worker's side.");
  bound
      .def(py::init([](uint32_t worker, uint32_t num_servers, uint64_t first_sequence,
                       const std::string& transport) {
             return inspected(std::make_shared<Client>(
                 ps::ClientOptions{worker, num_servers, first_sequence, config_with(transport)}));
           }),
           py::arg("worker"), py::arg("num_servers"), py::arg("first_sequence"),
           py::arg("transport") = "auto")
      .def("connect", &connect, py::arg("server"), py::arg("rails"), py::arg("first_rail"),
           py::arg("set"), py::arg("get"), py::arg("timeout_s"), py::arg("by_proxy") = false,
           py::arg("seat") = Seat(), py::arg("life") = 0)
      .def(
          "add_model",
          [](Client& client, uint32_t model, const ModelSpec& spec, uint64_t clock) {
            check(client.add_model(model, spec, clock));
          },
          kRelease, py::arg("model"), py::arg("spec"), py::arg("clock") = 0)
      .def(
          "clock_of", [](Client& client, uint32_t model) { return take(client.clock_of(model)); },
          kRelease)
      .def("clock", &Client::clock, kRelease)
      .def("skip_to", &Client::skip_to, kRelease, py::arg("model"), py::arg("server"),
           py::arg("clock"))
      .def("disconnect", &Client::disconnect, kRelease, py::arg("server"), py::arg("reason"))
      .def("lost", &Client::lost, kRelease)
      .def("confirm_lost", &Client::confirm_lost, kRelease, py::arg("server"), py::arg("life"))
      .def(
          "learn",
          [](Client& client, const std::vector<uint8_t>& told) { client.learn(to_lives(told)); },
          kRelease, py::arg("lives"))
      .def("lives", &Client::lives, kRelease)
      .def("heard", &Client::heard, kRelease)
      .def("returned", &Client::returned, kRelease)
      .def("lost_for_all", &Client::lost_for_all, kRelease)
      .def("idle", &Client::idle, kRelease)
      .def(
          "flush", [](Client& client, double timeout_s) { return client.flush(to_ms(timeout_s)); },
          kRelease, py::arg("timeout_s"))
      .def("rails", &client_rails)
      .def("close", &Client::close, kRelease);
  bind_starts(bound);
}

}  // namespace

void bind_ps(py::module_& module) {
  bind_memory(module);
  bind_data(module);
  bind_server(module);
  bind_uplink(module);
  bind_client(module);
  module.attr("FIRST_PROXY") = ps::kFirstProxy;
}

}  // namespace dmlcomm::bindings
