// The one variable that no connection needs: the control plane of the parameter server reads it
// alone, beside Config.
#pragma once

#include <string>

#include "base/status.h"

namespace dmlcomm {

// DMLCOMM_PROXY: whether workers talk to the servers by the proxy of their host: auto (the default:
// if there is one), none, or the path of its socket. invalid_argument for anything else.
Result<std::string> proxy_setting();

}  // namespace dmlcomm
