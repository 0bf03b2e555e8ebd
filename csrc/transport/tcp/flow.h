// What the kernel says of a TCP connection.
#pragma once

#include "transport/channel.h"

namespace dmlcomm::transport::tcp {

// Since the connection began. All 0 of a socket that is none. `queue_bytes`: may wait, beyond those
// on their way.
Channel::Flow flow_of(int fd, size_t queue_bytes);

}  // namespace dmlcomm::transport::tcp
