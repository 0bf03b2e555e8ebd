// Our declarations of UCX's C API against its headers, where these are installed: sizes, offsets
// and values, when this file is compiled. UCX may add behind what it has, but changes nothing of
// it.
#include <gtest/gtest.h>

#if __has_include(<ucp/api/ucp.h>)
#include <ucp/api/ucp.h>

#include <cstddef>
#include <type_traits>

#include "transport/ucx/ucx_abi.h"

namespace ours = dmlcomm::transport::ucx::abi;

static_assert(sizeof(ucs_status_t) == sizeof(ours::Code));
static_assert(UCS_OK == ours::kOk && UCS_INPROGRESS == ours::kInProgress);
static_assert(UCS_ERR_LAST == ours::kLastError);

static_assert(offsetof(ucp_params_t, field_mask) == offsetof(ours::Params, field_mask));
static_assert(offsetof(ucp_params_t, features) == offsetof(ours::Params, features));
static_assert(sizeof(ucp_params_t) <= sizeof(ours::Params));
static_assert(UCP_PARAM_FIELD_FEATURES == ours::kParamFeatures);
static_assert(UCP_FEATURE_WAKEUP == ours::kFeatureWakeup);
static_assert(UCP_FEATURE_AM == ours::kFeatureActiveMessages);

static_assert(offsetof(ucp_worker_params_t, thread_mode) ==
              offsetof(ours::WorkerParams, thread_mode));
static_assert(sizeof(ucp_worker_params_t) <= sizeof(ours::WorkerParams));
static_assert(UCP_WORKER_PARAM_FIELD_THREAD_MODE == ours::kWorkerParamThreadMode);
static_assert(UCS_THREAD_MODE_SERIALIZED == ours::kThreadModeSerialized);

static_assert(offsetof(ucp_ep_params_t, address) == offsetof(ours::EndpointParams, address));
static_assert(offsetof(ucp_ep_params_t, err_mode) == offsetof(ours::EndpointParams, error_mode));
static_assert(offsetof(ucp_ep_params_t, err_handler.cb) ==
              offsetof(ours::EndpointParams, error_handler));
static_assert(offsetof(ucp_ep_params_t, err_handler.arg) ==
              offsetof(ours::EndpointParams, error_argument));
static_assert(sizeof(ucp_ep_params_t) <= sizeof(ours::EndpointParams));
static_assert(sizeof(ucp_err_handling_mode_t) == sizeof(ours::EndpointParams::error_mode));
static_assert(UCP_EP_PARAM_FIELD_REMOTE_ADDRESS == ours::kEndpointParamAddress);
static_assert(UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE == ours::kEndpointParamErrorMode);
static_assert(UCP_EP_PARAM_FIELD_ERR_HANDLER == ours::kEndpointParamErrorHandler);
static_assert(UCP_ERR_HANDLING_MODE_PEER == ours::kErrorModePeer);

static_assert(offsetof(ucp_request_param_t, op_attr_mask) == offsetof(ours::RequestParam, mask));
static_assert(offsetof(ucp_request_param_t, flags) == offsetof(ours::RequestParam, flags));
static_assert(offsetof(ucp_request_param_t, cb) == offsetof(ours::RequestParam, callback));
static_assert(offsetof(ucp_request_param_t, user_data) == offsetof(ours::RequestParam, user_data));
static_assert(sizeof(ucp_request_param_t) <= sizeof(ours::RequestParam));
static_assert(UCP_OP_ATTR_FIELD_CALLBACK == ours::kRequestCallback);
static_assert(UCP_OP_ATTR_FIELD_USER_DATA == ours::kRequestUserData);
static_assert(UCP_OP_ATTR_FIELD_FLAGS == ours::kRequestFlags);
static_assert(UCP_EP_CLOSE_FLAG_FORCE == ours::kCloseForce);
static_assert(UCP_AM_SEND_FLAG_EAGER == ours::kSendAtOnce);
static_assert(UCP_AM_SEND_FLAG_RNDV == ours::kSendByRendezvous);

static_assert(offsetof(ucp_am_recv_param_t, recv_attr) == offsetof(ours::MessageParam, attributes));
static_assert(UCP_AM_RECV_ATTR_FLAG_DATA == ours::kMessageIsKept);
static_assert(UCP_AM_RECV_ATTR_FLAG_RNDV == ours::kMessageIsRendezvous);

static_assert(offsetof(ucp_am_handler_param_t, id) == offsetof(ours::HandlerParam, id));
static_assert(offsetof(ucp_am_handler_param_t, flags) == offsetof(ours::HandlerParam, flags));
static_assert(offsetof(ucp_am_handler_param_t, cb) == offsetof(ours::HandlerParam, handler));
static_assert(offsetof(ucp_am_handler_param_t, arg) == offsetof(ours::HandlerParam, argument));
static_assert(sizeof(ucp_am_handler_param_t) <= sizeof(ours::HandlerParam));
static_assert(UCP_AM_HANDLER_PARAM_FIELD_ID == ours::kHandlerId);
static_assert(UCP_AM_HANDLER_PARAM_FIELD_CB == ours::kHandlerFunction);
static_assert(UCP_AM_HANDLER_PARAM_FIELD_ARG == ours::kHandlerArgument);
#endif

TEST(UcxAbi, IsThatOfTheHeaders) {
#if !__has_include(<ucp/api/ucp.h>)
  GTEST_SKIP() << "no headers of UCX (Debian and Ubuntu: libucx-dev)";
#endif
}
