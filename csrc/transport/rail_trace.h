// RailTrace: when the bytes of each operation passed between this process and its rails, for people
// who look at a trace. One for all groups of the process; it costs a test of a flag while it is
// off.
//
// A range begins with the first bytes of a collective, or of a message between two ranks, on a
// rail, in one direction, and ends with the last ones. The kernel may hold them before, or after
// that.
//
// Threads: any.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <tuple>
#include <vector>

#include "transport/frame.h"

namespace dmlcomm::transport {

struct RailRange {
  std::string interface;
  bool is_sent = false;  // or received
  uint64_t job_id = 0;   // of the group
  Tag tag = 0;           // of its first message
  OpInfo op;
  uint64_t bytes = 0;  // without headers
  int64_t begin_ns = 0;
  int64_t end_ns = 0;
};

class RailTrace {
 public:
  static RailTrace& instance();

  bool is_on() const { return is_on_.load(std::memory_order_relaxed); }
  // Forgets what it has.
  void start();
  // What there was since start(), in no order. Of more than kMost ranges the first ones.
  std::vector<RailRange> stop();
  // Bytes of the payload of a data frame pass now on `connection`; `is_first`: nothing of that
  // payload passed before.
  void note(const std::string& interface, const void* connection, bool is_sent,
            const FrameHeader& header, bool is_first, size_t bytes);

 private:
  static constexpr size_t kMost = size_t{1} << 18;
  // Interface, direction, group, and operation: the sequence of a collective; or tag and connection
  // of messages, which are apart by their sizes and offsets.
  using Key = std::tuple<std::string, bool, uint64_t, uint64_t, const void*>;
  struct Open {
    size_t range = 0;
    uint64_t message_bytes = 0;
    uint64_t offset = 0;  // of the last frame
  };

  std::atomic<bool> is_on_{false};
  std::mutex mutex_;
  std::vector<RailRange> ranges_;  // guarded by mutex_
  std::map<Key, Open> open_;       // the last range of each; guarded by mutex_
};

}  // namespace dmlcomm::transport
