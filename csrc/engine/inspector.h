// Inspector: tells other processes of this user what the groups of this process do, also while its
// interpreter hangs.
//
// A thread of its own, which takes no lock of an interpreter, listens at a Unix socket. A process
// of the same user or of root that connects gets one JSON text, and cannot change anything. The
// socket is a file in a folder that belongs to this user alone; where there is no such folder, or
// no further thread, the process does without, and the log says so. Ranks with
// DMLCOMM_METRICS_PORT also serve the metrics of their groups (metrics_server.h).
//
// Threads: any. A forked child has an inspector of its own once it makes a group.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "base/unique_fd.h"
#include "engine/metrics.h"

namespace dmlcomm::engine {

// What a group of ranks, a parameter server, or a worker's side of them tells.
struct Inspection {
  enum class Kind { group, server, worker };
  Kind kind = Kind::group;
  std::string json;  // one object; empty once it is closed
  Samples samples{};
};

// Any thread may ask, at any time.
class Inspectable {
 public:
  virtual ~Inspectable() = default;
  virtual Inspection inspect() = 0;
};

// Where a rank serves its metrics; port 0: nowhere.
struct MetricsPlace {
  std::string host;
  uint16_t first_port = 0;  // of the host's first rank
  int local_rank = 0;
};

class Inspector {
 public:
  // The process's. It lives until the process ends.
  static Inspector& instance();
  // Where the sockets of this user's processes are: "<process id>-<number>.sock".
  static std::string folder();

  // `job`: the same on all ranks of the group. That of the first group is the process's.
  void add_group(std::weak_ptr<Inspectable> group, uint64_t job, const MetricsPlace& place);
  void add(std::weak_ptr<Inspectable> part);

 private:
  Inspector() = default;
  void add_locked(std::weak_ptr<Inspectable> part);
  Status start();
  void run(int listener);
  // With the process's job.
  std::pair<uint64_t, std::vector<Inspection>> ask_all();
  std::string text();
  std::string metrics();

  std::mutex mutex_;
  // Guarded by mutex_.
  int generation_ = -1;          // of forks: where the thread is
  int metrics_generation_ = -1;  // where metrics are served
  uint64_t job_ = 0;             // 0: there is no group of ranks yet
  std::vector<std::weak_ptr<Inspectable>> parts_;
};

// As JSON has it, with quotation marks.
std::string json_text(const std::string& text);
// Of a communicator, in quotation marks: 16 hexadecimal digits.
std::string json_number(uint64_t communicator);

}  // namespace dmlcomm::engine
