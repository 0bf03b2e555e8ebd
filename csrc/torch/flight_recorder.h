// FlightLog: the calls of one group in torch's flight recorder, which shows after a hang what each
// rank was at, and where.
//
// Torch 2.15 records other backends' calls by itself (FlightRecorderHook); why dmlcomm does it is
// in docs/adr/0009-flight-recorder.md. An entry is written in place, and a stack is taken only
// where it may be asked for: of calls that return before they are done, and of those that wait for
// long. Older torch has recorders for its own backends alone; then nothing is recorded.
//
// Threads: everything from any thread. The recorder and its lock are torch's, and last as long as
// the process.
#pragma once

#include <ATen/ATen.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/logger.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

namespace dmlcomm::adaptor {

// One call's entry. Empty where nothing is recorded; without effect once the ring has taken the
// place for another call.
class FlightEntry {
 public:
  FlightEntry() = default;

  bool is_empty() const { return group_ == nullptr; }

  // The call's data is there. A call that fails or hangs stays `scheduled`.
  void complete() const;

  // Adds the stack of this thread, which must not hold the GIL. Keeps one that is there.
  void add_stack() const;

 private:
  friend class FlightLog;

  c10d::ProcessGroupStatus* group_ = nullptr;  // null: empty
  size_t place_ = 0;
  size_t id_ = 0;
  size_t epoch_ = 0;
  int64_t sequence_ = 0;  // of a collective; -1 for a message
};

class FlightLog {
 public:
  // Whether this build can record.
  static bool is_available();

  struct Call {
    c10d::OpType type;
    const char* title;   // of a collective: "dmlcomm:all_reduce"
    int peer;            // of a message; negative: any
    bool returns_early;  // the caller may be elsewhere when the call hangs
    std::chrono::milliseconds timeout;
    const std::vector<at::Tensor>& inputs;
    const std::vector<at::Tensor>& outputs;
  };

  // `backend` outlives the log. A forked child's copy records nothing.
  FlightLog(c10d::Backend& backend, const std::vector<int>& global_ranks);

  // Must be called without the GIL.
  FlightEntry begin(const Call& call);

  // The group has other ranks from now on.
  void regroup(const std::vector<int>& global_ranks);

 private:
  void introduce_group();
  void put_title(const Call& call, std::string& title) const;

  c10d::Backend& backend_;
  const int fork_generation_;  // of the process that made it

  std::vector<uint64_t> global_ranks_;  // changed with the recorder's lock, and before a call

  // Guarded by the recorder's lock, which torch's dumps of groups and their states do without.
  std::shared_ptr<c10d::ProcessGroupStatus> status_;  // null: the recorder does not know the group
  size_t group_id_ = 0;
  std::tuple<std::string, std::string> group_name_;  // name, description
  int64_t num_collectives_ = 0;
  int64_t num_messages_ = 0;
};

}  // namespace dmlcomm::adaptor
