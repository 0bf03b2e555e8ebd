#include "bindings/bindings.h"

#include <pybind11/stl.h>

#include <string>

#include "base/config.h"
#include "base/proxy_setting.h"

namespace py = pybind11;

namespace dmlcomm::bindings {

namespace {

std::string port_range_of(const Config& config) {
  if (config.port_first == 0) return "";
  return std::to_string(config.port_first) + "-" + std::to_string(config.port_last);
}

// One key per environment variable: its name without "DMLCOMM_", in lower case.
py::dict dict_of(const Config& config, const std::string& proxy) {
  py::dict values;
  values["socket_ifname"] = config.socket_ifname;
  values["topology"] = config.topology;
  values["transport"] = to_string(config.transport);
  values["ucx_remote_memory"] = to_string(config.ucx_remote_memory);
  values["ticket_mark"] = to_string(config.ticket_mark);
  values["checksum"] = to_string(config.checksum);
  values["algorithm"] = config.algorithm;
  values["plan"] = config.plan;
  values["port_range"] = port_range_of(config);
  values["secret"] = config.secret;
  values["ps_servers"] = config.ps_servers;
  values["ps_token"] = config.ps_token;
  values["ps_worker"] = config.ps_worker;
  values["proxy"] = proxy;
  values["job_priority"] = config.job_priority;
  values["peer_timeout_s"] = config.peer_timeout_s;
  values["metrics_port"] = config.metrics_port;
  values["metrics_host"] = config.metrics_host;
  values["log_level"] = to_string(config.log_level);
  values["spin_us"] = config.spin_us;
  values["shm_board_bytes"] = config.shm_board_bytes;
  values["shm_single_copy"] = config.shm_single_copy;
  values["autotune"] = config.autotune;
  values["probe"] = config.probe;
  values["huge_pages"] = config.huge_pages;
  values["cuda_chunk_bytes"] = config.cuda_chunk_bytes;
  values["cuda_nccl"] = to_string(config.cuda_nccl);
  values["credit_bytes"] = config.credit_bytes;
  values["ticket_connections"] = config.ticket_connections;
  values["tcp_congestion"] = config.tcp_congestion;
  values["tcp_buffer_bytes"] = config.tcp_buffer_bytes;
  return values;
}

py::dict process_config_dict() {
  Result<Config> config = process_config();
  if (!config.ok()) throw py::value_error(config.status().message());
  const Result<std::string> proxy = proxy_setting();
  if (!proxy.ok()) throw py::value_error(proxy.status().message());
  return dict_of(*config, *proxy);
}

}  // namespace

void bind_config(py::module_& module) {
  module.def("config", &process_config_dict,
             "The process's configuration: one key per variable DMLCOMM_<KEY>. Raises ValueError "
             "when the environment is wrong.");
  module.def(
      "config_defaults", [] { return dict_of(Config{}, "auto"); },
      "What config() returns when no variable is set.");
}

}  // namespace dmlcomm::bindings
