// Simulation: when flows and computations end, on links that they share.
//
// A *task* is a flow or a computation. It begins at its start, but not before all tasks that it
// comes after have ended. A computation takes its duration. A flow first takes the latencies of its
// links; then its bytes share the links with all other flows, by FairShares, until they are
// through. Queues and losses are not simulated.
//
// Time is exact but for rounding, with one exception: a flow ends as soon as at most a part in 10^9
// of it is left. So flows that end together do so, and links are shared anew once.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/status.h"
#include "sim/fair_shares.h"

namespace dmlcomm::sim {

using TaskId = int64_t;  // counted from 0, in the order in which tasks are added

// Lanes are numbers of the caller's, 0 or more.
constexpr int64_t kNoLane = -1;

struct FlowSpec {
  std::vector<int64_t> path;  // without links it takes no time
  double bytes = 0;
  double start_s = 0;
  std::vector<TaskId> after;
  double weight = 1;
  int64_t priority = 0;  // a ticket
  int64_t lane = kNoLane;
};

struct ComputeSpec {
  double seconds = 0;
  double start_s = 0;
  std::vector<TaskId> after;
  int64_t lane = kNoLane;
};

struct Outcome {
  double makespan_s = 0;                 // the end of the last task
  std::vector<double> starts_s, ends_s;  // by task
  std::vector<double> link_bytes;        // by link: that all flows have carried over it
};

class Simulation {
 public:
  // Capacities in bit/s and latencies in seconds, by link; latencies may be left out.
  static Result<Simulation> make(std::vector<double> capacities, std::vector<double> latencies_s);

  // `invalid_argument` says what is wrong; nothing is added then.
  Result<TaskId> add_flow(const FlowSpec& spec);
  Result<TaskId> add_compute(const ComputeSpec& spec);
  // The link carries nothing from `time_s` on for `dark_s`, and has the capacity after that.
  Status change_capacity(int64_t link, double time_s, double capacity, double dark_s);
  // From `time_s` on the flows that were added with `path` take `other`, also those under way, with
  // what is left of them. Both have links. A flow keeps the latencies of `path`.
  Status change_path(const std::vector<int64_t>& path, double time_s,
                     const std::vector<int64_t>& other);

  size_t num_tasks() const { return tasks_.size(); }
  size_t num_links() const { return capacities_.size(); }

  // Plays everything from time 0 on; may be called again. `may_go_on` is asked now and then with
  // the number of tasks that have ended. `aborted` if it says no; `invalid_argument` if tasks never
  // end, because a link on their way has no capacity.
  //
  // Links are shared anew at most once in `resolution_s`, 0 or more; with 0 whenever flows or
  // capacities have changed. In between, flows of one path have what these had in total when the
  // links were shared last, so a flow on an idle path waits, and what ended flows had is unused.
  Result<Outcome> run(const std::function<bool(size_t num_ended)>& may_go_on,
                      double resolution_s = 0) const;

 private:
  friend class Play;

  Simulation() = default;

  static constexpr uint32_t kNone = UINT32_MAX;

  struct Task {
    double start_s;
    double seconds;  // of a computation; of a flow before its bytes enter the links
    double bytes;
    double weight;
    uint32_t path;  // in paths_; kNone: a computation, and for a flow without links
    uint32_t lane;  // in lane_ids_; kNone: has none
    uint8_t priority;
    bool is_flow;
    uint32_t first_after, num_after;  // in after_
  };
  struct Change {
    double time_s;
    uint32_t link;
    double capacity;
  };
  struct Reroute {
    double time_s;
    uint32_t path, other;  // in paths_
  };

  std::string name(TaskId task) const;
  Status check_start(const std::string& who, double start_s, const std::vector<TaskId>& after,
                     int64_t lane) const;
  TaskId add(Task task, const std::vector<TaskId>& after, int64_t lane);
  uint32_t path_id(const std::vector<int64_t>& links);

  std::vector<double> capacities_, latencies_s_;
  std::vector<Path> paths_;
  std::vector<double> path_latencies_s_;
  std::unordered_map<Path, uint32_t, PathHash> path_ids_;
  std::unordered_map<int64_t, uint32_t> lane_ids_;
  std::vector<Task> tasks_;
  std::vector<TaskId> after_;
  std::vector<Change> changes_;
  std::vector<Reroute> reroutes_;
};

}  // namespace dmlcomm::sim
