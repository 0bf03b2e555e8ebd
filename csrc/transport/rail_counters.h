// RailCounters: counters of one rail of a communicator, over all peers.
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

  // The same rail of another communicator.
  void add(const RailCounters& other) {
    bytes_sent += other.bytes_sent;
    bytes_received += other.bytes_received;
    frames_repeated += other.frames_repeated;
    lanes_lost += other.lanes_lost;
    lanes_back += other.lanes_back;
  }
};

}  // namespace dmlcomm::transport
