// UcxApi: the functions of libucp, loaded when they are first asked for. The library stays loaded.
#pragma once

#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "transport/ucx/ucx_abi.h"

namespace dmlcomm::transport::ucx {

struct UcxApi {
  using Handle = void*;

  const char* (*version)() = nullptr;
  void (*version_numbers)(unsigned* major, unsigned* minor, unsigned* release) = nullptr;
  const char* (*text_of)(abi::Code) = nullptr;
  abi::Code (*read_config)(const char* prefix, const char* file, Handle* config) = nullptr;
  abi::Code (*modify_config)(Handle config, const char* name, const char* value) = nullptr;
  void (*release_config)(Handle config) = nullptr;
  abi::Code (*create_context)(unsigned major, unsigned minor, const abi::Params*, Handle config,
                              Handle* context) = nullptr;
  void (*destroy_context)(Handle context) = nullptr;
  void (*print_context)(Handle context, std::FILE*) = nullptr;
  abi::Code (*create_worker)(Handle context, const abi::WorkerParams*, Handle* worker) = nullptr;
  void (*destroy_worker)(Handle worker) = nullptr;
  abi::Code (*get_address)(Handle worker, Handle* address, size_t* bytes) = nullptr;
  void (*release_address)(Handle worker, Handle address) = nullptr;
  abi::Code (*get_descriptor)(Handle worker, int* fd) = nullptr;
  abi::Code (*arm)(Handle worker) = nullptr;
  unsigned (*progress)(Handle worker) = nullptr;
  abi::Code (*set_handler)(Handle worker, const abi::HandlerParam*) = nullptr;
  abi::Code (*create_endpoint)(Handle worker, const abi::EndpointParams*,
                               Handle* endpoint) = nullptr;
  void (*print_endpoint)(Handle endpoint, std::FILE*) = nullptr;
  abi::StatusPointer (*flush_endpoint)(Handle endpoint, const abi::RequestParam*) = nullptr;
  abi::StatusPointer (*close_endpoint)(Handle endpoint, const abi::RequestParam*) = nullptr;
  abi::StatusPointer (*send_message)(Handle endpoint, unsigned id, const void* header,
                                     size_t header_bytes, const void* data, size_t bytes,
                                     const abi::RequestParam*) = nullptr;
  abi::StatusPointer (*receive_message)(Handle worker, void* message, void* to, size_t bytes,
                                        const abi::RequestParam*) = nullptr;
  void (*release_message)(Handle worker, void* data) = nullptr;
  void (*free_request)(void* request) = nullptr;

  // `unsupported` if there is no UCX, or too old a one.
  static const Result<UcxApi>& load();

  Status check(abi::Code code, const char* function) const;
  // Its lanes, one a line.
  std::string text_of_endpoint(Handle endpoint) const;

  // A context for active messages. `options`: names and values of UCX's variables, without UCX_;
  // others are as the environment says.
  using Options = std::vector<std::pair<std::string, std::string>>;
  Result<Handle> open_context(const Options& options) const;
};

// What UCX can use on this machine, for `dmlcomm doctor`.
struct UcxOffer {
  std::string version;
  std::vector<std::string> resources;  // "tcp/eth0": a transport and its device
};
Result<UcxOffer> ucx_offer();

}  // namespace dmlcomm::transport::ucx
