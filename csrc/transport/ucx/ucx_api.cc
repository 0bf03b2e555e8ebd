#include "transport/ucx/ucx_api.h"

#include <dlfcn.h>

#include <cstdlib>
#include <sstream>
#include <type_traits>

namespace dmlcomm::transport::ucx {
namespace {

constexpr char kLibrary[] = "libucp.so.0";

Result<UcxApi> load_library() {
  void* const library = dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* const reason = dlerror();
    return Status(StatusCode::unsupported,
                  "UCX does not load: ", reason == nullptr ? kLibrary : reason,
                  "; install it (Debian and Ubuntu: libucx0), or use DMLCOMM_TRANSPORT=auto");
  }
  UcxApi api;
  std::string missing;
  const auto find = [&](const char* name, auto* function) {
    *function = reinterpret_cast<std::remove_pointer_t<decltype(function)>>(dlsym(library, name));
    if (*function == nullptr) missing = name;
  };
  find("ucp_get_version_string", &api.version);
  find("ucp_get_version", &api.version_numbers);
  find("ucs_status_string", &api.text_of);
  find("ucp_config_read", &api.read_config);
  find("ucp_config_modify", &api.modify_config);
  find("ucp_config_release", &api.release_config);
  find("ucp_init_version", &api.create_context);
  find("ucp_cleanup", &api.destroy_context);
  find("ucp_context_print_info", &api.print_context);
  find("ucp_worker_create", &api.create_worker);
  find("ucp_worker_destroy", &api.destroy_worker);
  find("ucp_worker_get_address", &api.get_address);
  find("ucp_worker_release_address", &api.release_address);
  find("ucp_worker_get_efd", &api.get_descriptor);
  find("ucp_worker_arm", &api.arm);
  find("ucp_worker_progress", &api.progress);
  find("ucp_worker_set_am_recv_handler", &api.set_handler);
  find("ucp_ep_create", &api.create_endpoint);
  find("ucp_ep_print_info", &api.print_endpoint);
  find("ucp_ep_flush_nbx", &api.flush_endpoint);
  find("ucp_ep_close_nbx", &api.close_endpoint);
  find("ucp_am_send_nbx", &api.send_message);
  find("ucp_am_recv_data_nbx", &api.receive_message);
  find("ucp_am_data_release", &api.release_message);
  find("ucp_request_free", &api.free_request);
  if (missing.empty()) return api;
  return Status(StatusCode::unsupported, "UCX (", kLibrary, ") has no ", missing,
                ": install UCX 1.11 or newer, or use DMLCOMM_TRANSPORT=auto");
}

std::string printed(UcxApi::Handle object, void (*print)(UcxApi::Handle, std::FILE*)) {
  char* text = nullptr;
  size_t bytes = 0;
  std::FILE* const stream = open_memstream(&text, &bytes);
  if (stream == nullptr) return {};
  print(object, stream);
  std::fclose(stream);
  std::string result(text, bytes);
  std::free(text);
  return result;
}

}  // namespace

std::string UcxApi::text_of_endpoint(Handle endpoint) const {
  return printed(endpoint, print_endpoint);
}

// Never destroyed: groups may end with the process.
const Result<UcxApi>& UcxApi::load() {
  static const auto* const api = new Result<UcxApi>(load_library());
  return *api;
}

Status UcxApi::check(abi::Code code, const char* function) const {
  if (code >= 0) return Status();
  return Status(StatusCode::io_error, function, " of UCX ", version(), " failed: ", text_of(code));
}

Result<UcxApi::Handle> UcxApi::open_context(const Options& options) const {
  Handle config = nullptr;
  DMLCOMM_RETURN_IF_ERROR(check(read_config(nullptr, nullptr, &config), "ucp_config_read"));
  Status status;
  for (const auto& [name, value] : options) {
    if (!status.ok()) break;
    status = check(modify_config(config, name.c_str(), value.c_str()),
                   str_cat("ucp_config_modify(", name, ", \"", value, "\")").c_str());
  }
  Handle context = nullptr;
  if (status.ok()) {
    abi::Params params;
    params.field_mask = abi::kParamFeatures;
    params.features = abi::kFeatureActiveMessages | abi::kFeatureWakeup;
    status = check(create_context(abi::kApiMajor, abi::kApiMinor, &params, config, &context),
                   "ucp_init");
  }
  release_config(config);
  if (!status.ok()) return status;
  return context;
}

// UCX has no function that lists them, but it prints "#  resource 1 :  md 1  dev 1  -- tcp/eth0".
Result<UcxOffer> ucx_offer() {
  const Result<UcxApi>& api = UcxApi::load();
  if (!api.ok()) return api.status();
  Result<UcxApi::Handle> context = api->open_context({});
  if (!context.ok()) return context.status();
  std::istringstream lines(printed(*context, api->print_context));
  api->destroy_context(*context);
  UcxOffer offer{api->version(), {}};
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string word;
    bool is_resource = false;
    while (words >> word) is_resource |= word == "resource";
    if (is_resource && word.find('/') != std::string::npos) offer.resources.push_back(word);
  }
  return offer;
}

}  // namespace dmlcomm::transport::ucx
