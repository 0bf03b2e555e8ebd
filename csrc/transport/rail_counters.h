// RailCounters: counters of one rail of a communicator, over all peers.
#pragma once

#include <algorithm>
#include <cstdint>
#include <set>
#include <string>
#include <vector>

namespace dmlcomm::transport {

// How long urgent operations waited here until their first byte left: to start, and for a lane; not
// for peers.
struct UrgentWaits {
  uint64_t num = 0;
  uint64_t total_us = 0;
  uint64_t longest_us = 0;

  void note(int64_t waited_ns) {
    const auto waited_us = static_cast<uint64_t>(waited_ns / 1000);
    add({1, waited_us, waited_us});
  }
  void add(const UrgentWaits& other) {
    num += other.num;
    total_us += other.total_us;
    longest_us = std::max(longest_us, other.longest_us);
  }
};

struct RailCounters {
  std::string interface;    // "local": to ranks of this host
  uint64_t bytes_sent = 0;  // headers included
  uint64_t bytes_received = 0;
  uint64_t frames_repeated = 0;  // over other rails, after a lane died here
  uint64_t lanes_lost = 0;
  uint64_t lanes_back = 0;
  // Measured, 0 where that is not known: what the rail carries, and the shortest round trip.
  double bits_per_second = 0;
  double round_trip_us = 0;
  // What algorithms are chosen for, alike on all ranks; 0: they do not depend on this rail, or no
  // round trip has been measured. A message takes so long beside its bytes.
  double agreed_bits_per_second = 0;
  double agreed_round_trip_us = 0;
  double agreed_message_us = 0;
  uint64_t bytes_resent = 0;  // by TCP
  uint64_t bytes_lent = 0;    // of those sent; by UCX, see Channel::bytes_lent()
  // The most that an urgent message waits for what has been handed down; 0: not known.
  double blocking_us = 0;
  UrgentWaits urgent_waits{};
  // Of TCP's connections.
  std::set<std::string> congestion{};

  // "bbr, cubic"; empty where no connection is TCP's.
  std::string congestion_names() const {
    std::string names;
    for (const std::string& name : congestion) names += (names.empty() ? "" : ", ") + name;
    return names;
  }

  // The same rail of another communicator.
  void add(const RailCounters& other) {
    bytes_sent += other.bytes_sent;
    bytes_received += other.bytes_received;
    frames_repeated += other.frames_repeated;
    lanes_lost += other.lanes_lost;
    lanes_back += other.lanes_back;
    bits_per_second = std::max(bits_per_second, other.bits_per_second);
    round_trip_us = std::max(round_trip_us, other.round_trip_us);
    agreed_bits_per_second = std::max(agreed_bits_per_second, other.agreed_bits_per_second);
    agreed_round_trip_us = std::max(agreed_round_trip_us, other.agreed_round_trip_us);
    agreed_message_us = std::max(agreed_message_us, other.agreed_message_us);
    bytes_resent += other.bytes_resent;
    bytes_lent += other.bytes_lent;
    blocking_us = std::max(blocking_us, other.blocking_us);
    urgent_waits.add(other.urgent_waits);
    congestion.insert(other.congestion.begin(), other.congestion.end());
  }
};

// Those of another communicator.
inline void add_rails(std::vector<RailCounters>& all, const std::vector<RailCounters>& others) {
  for (const RailCounters& rail : others) {
    const auto same = std::find_if(all.begin(), all.end(), [&](const RailCounters& other) {
      return other.interface == rail.interface;
    });
    same == all.end() ? all.push_back(rail) : same->add(rail);
  }
}

}  // namespace dmlcomm::transport
