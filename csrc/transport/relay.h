// Relay: copies bytes between two channels, both ways, until both ends have closed.
//
// It takes from one channel what the other has room for, so a slow receiver slows its sender down
// and nothing piles up here: at most one read of each direction waits. The end of one direction is
// passed on, the other goes on. What an end that has failed would get is dropped; what came from it
// is passed on, and its end.
//
// One thread calls it. It knows nothing of frames.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "transport/channel.h"
#include "transport/stall_watch.h"

namespace dmlcomm::transport {

class Relay {
 public:
  Relay(std::unique_ptr<Channel> first, std::unique_ptr<Channel> second);

  // Moves what can be moved, a bounded number of bytes; true if more could be at once. `scratch` is
  // used during the call.
  bool advance(std::span<std::byte> scratch);
  // Both ends have closed or failed.
  bool is_over() const;
  // Of the end that has stalled longer; see StallWatch.
  int64_t stalled_ns(int64_t now_ns);
  Channel& end(size_t index) { return *ends_[index]; }

 private:
  struct Direction {
    Channel* from;
    Channel* to;
    std::vector<std::byte> waiting;  // read, and `to` had no room
    size_t written = 0;              // of these
    bool ended = false;              // nothing more can be read
    bool closed = false;             // and `to` has been told
    StallWatch stall_watch{};
  };

  bool flow(Direction& direction, std::span<std::byte> scratch);
  bool write_waiting(Direction& direction);
  size_t write(Channel& to, std::span<const std::byte> bytes);

  const std::array<std::unique_ptr<Channel>, 2> ends_;
  std::array<Direction, 2> directions_;
};

}  // namespace dmlcomm::transport
