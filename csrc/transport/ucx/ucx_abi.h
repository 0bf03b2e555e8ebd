// The part of UCX's C API that we call, declared as ucp/api/ucp.h of UCX 1.11 and later has it: so
// neither the build nor a wheel needs UCX. UCX reads only the fields of a structure that its mask
// names, and only adds behind them, so these declarations fit later versions, too. ucx_abi_test
// compares them with the real headers, where these are installed.
#pragma once

#include <cstddef>
#include <cstdint>

namespace dmlcomm::transport::ucx::abi {

constexpr unsigned kApiMajor = 1;
constexpr unsigned kApiMinor = 11;

// ucs_status_t: an enum of one byte.
using Code = int8_t;
constexpr Code kOk = 0;
constexpr Code kInProgress = 1;
constexpr Code kLastError = -100;

// Nothing: it has ended. An error. Or a request that is under way.
using StatusPointer = void*;
inline bool is_error(StatusPointer pointer) {
  return reinterpret_cast<uintptr_t>(pointer) >= static_cast<uintptr_t>(intptr_t{kLastError});
}
inline bool is_request(StatusPointer pointer) { return pointer != nullptr && !is_error(pointer); }
inline Code code_of(StatusPointer pointer) {
  return static_cast<Code>(reinterpret_cast<intptr_t>(pointer));
}

struct Params {  // ucp_params_t
  uint64_t field_mask = 0;
  uint64_t features = 0;
  uint64_t unused[8] = {};
};
constexpr uint64_t kParamFeatures = 1;
constexpr uint64_t kFeatureWakeup = 1 << 4;
constexpr uint64_t kFeatureActiveMessages = 1 << 6;

struct WorkerParams {  // ucp_worker_params_t
  uint64_t field_mask = 0;
  int thread_mode = 0;
  uint64_t unused[32] = {};
};
constexpr uint64_t kWorkerParamThreadMode = 1;
constexpr int kThreadModeSerialized = 1;

using ErrorHandler = void (*)(void* argument, void* endpoint, Code code);

struct EndpointParams {  // ucp_ep_params_t
  uint64_t field_mask = 0;
  const void* address = nullptr;
  int error_mode = 0;
  ErrorHandler error_handler = nullptr;
  void* error_argument = nullptr;
  uint64_t unused[12] = {};
};
constexpr uint64_t kEndpointParamAddress = 1;
constexpr uint64_t kEndpointParamErrorMode = 1 << 1;
constexpr uint64_t kEndpointParamErrorHandler = 1 << 2;
constexpr int kErrorModePeer = 1;

using SendCallback = void (*)(void* request, Code code, void* user_data);
using ReceiveCallback = void (*)(void* request, Code code, size_t bytes, void* user_data);

struct RequestParam {  // ucp_request_param_t
  uint32_t mask = 0;
  uint32_t flags = 0;
  void* request = nullptr;
  union {
    SendCallback send = nullptr;
    ReceiveCallback receive;
  } callback;
  uint64_t datatype = 0;
  void* user_data = nullptr;
  uint64_t unused[8] = {};
};
constexpr uint32_t kRequestCallback = 1 << 1;
constexpr uint32_t kRequestUserData = 1 << 2;
constexpr uint32_t kRequestFlags = 1 << 4;
constexpr uint32_t kCloseForce = 1;
constexpr uint32_t kSendAtOnce = 1 << 1;        // UCP_AM_SEND_FLAG_EAGER
constexpr uint32_t kSendByRendezvous = 1 << 2;  // UCP_AM_SEND_FLAG_RNDV

struct MessageParam {  // ucp_am_recv_param_t
  uint64_t attributes = 0;
  void* reply_endpoint = nullptr;
};
constexpr uint64_t kMessageIsKept = 1 << 16;        // UCP_AM_RECV_ATTR_FLAG_DATA
constexpr uint64_t kMessageIsRendezvous = 1 << 17;  // UCP_AM_RECV_ATTR_FLAG_RNDV

using MessageHandler = Code (*)(void* argument, const void* header, size_t header_bytes, void* data,
                                size_t bytes, const MessageParam* param);

struct HandlerParam {  // ucp_am_handler_param_t
  uint64_t field_mask = 0;
  unsigned id = 0;
  uint32_t flags = 0;
  MessageHandler handler = nullptr;
  void* argument = nullptr;
};
constexpr uint64_t kHandlerId = 1;
constexpr uint64_t kHandlerFunction = 1 << 2;
constexpr uint64_t kHandlerArgument = 1 << 3;

}  // namespace dmlcomm::transport::ucx::abi
