// Inspector: tells other processes of this user what the groups of this process do, also while its
// interpreter hangs.
//
// A thread of its own, which takes no lock of an interpreter, listens at a Unix socket. A process
// of the same user or of root that connects gets one JSON text, and cannot change anything. The
// socket is a file in a folder that belongs to this user alone; where there is no such folder, or
// no further thread, the process does without, and the log says so.
//
// Threads: any. A forked child has an inspector of its own once it makes a group.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/status.h"
#include "base/unique_fd.h"

namespace dmlcomm::engine {

// A group that can be asked. From any thread.
class Inspectable {
 public:
  virtual ~Inspectable() = default;
  // One JSON object; empty once the group is closed.
  virtual std::string inspect() = 0;
};

class Inspector {
 public:
  // The process's. It lives until the process ends.
  static Inspector& instance();
  // Where the sockets of this user's processes are: "<process id>.sock".
  static std::string folder();

  // `job`: the same on all ranks of the group. That of the first group is the process's.
  void add(std::weak_ptr<Inspectable> group, uint64_t job);

 private:
  Inspector() = default;
  Status start();
  void run(int listener);
  std::string text();

  std::mutex mutex_;
  // Guarded by mutex_.
  int generation_ = -1;  // of forks: where the thread is
  uint64_t job_ = 0;
  std::vector<std::weak_ptr<Inspectable>> groups_;
};

// As JSON has it, with quotation marks.
std::string json_text(const std::string& text);

}  // namespace dmlcomm::engine
