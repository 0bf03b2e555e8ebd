// RailCounters: what has happened on one rail of a communicator, to all peers together.
#pragma once

#include <cstdint>
#include <string>

namespace dmlcomm::transport {

struct RailCounters {
  std::string interface;    // "local": to ranks of this host
  uint64_t bytes_sent = 0;  // headers included
  uint64_t bytes_received = 0;
  uint64_t frames_repeated = 0;  // over other rails, after a lane died here
  uint64_t lanes_lost = 0;
  uint64_t lanes_back = 0;
};

}  // namespace dmlcomm::transport
