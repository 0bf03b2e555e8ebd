// Play: one run of a Simulation. It is private to simulation.cc.
#pragma once

#include <cstdint>
#include <functional>
#include <queue>
#include <unordered_map>
#include <vector>

#include "sim/earliest.h"
#include "sim/fair_shares.h"
#include "sim/simulation.h"

namespace dmlcomm::sim {

class Play {
 public:
  Play(const Simulation& simulation, double resolution_s);

  Result<Outcome> run(const std::function<bool(size_t num_ended)>& may_go_on);

 private:
  // What happens at a time; smaller ones go first. Bytes of flows end beside these (`ends_`).
  enum class What : uint8_t {
    change,   // of a link
    reroute,  // of a path
    begin,    // of a task
    arrived,  // the latencies of a flow are over
    done,     // a computation
    share,    // links are shared anew, which was put off
  };
  struct Event {
    double time_s;
    What what;
    uint32_t id;  // of a change, a reroute or a task, else 0
    bool operator>(const Event& other) const {
      if (time_s != other.time_s) return time_s > other.time_s;
      return what != other.what ? what > other.what : id > other.id;
    }
  };

  // A flow in its group. Service is what a flow of weight 1 has got since the beginning, in bits.
  struct Flow {
    double nearly_done;  // service of the group at which at most a part in 10^9 is left
    double done;         // at which nothing is left
    uint32_t task;
    bool operator>(const Flow& other) const {
      if (nearly_done != other.nearly_done) return nearly_done > other.nearly_done;
      return task > other.task;
    }
  };
  struct Group {
    double service = 0;  // at time_s
    double time_s = 0;
    double level = 0;    // since then
    double granted = 0;  // to all its flows, when links were shared last
    double weight = 0;
    double nearly_done = 0, done = 0;  // of the first of the flows
    bool is_stale = false, is_moved = false;
    std::priority_queue<Flow, std::vector<Flow>, std::greater<>> flows;
  };

  struct Lane {
    bool is_busy = false;
    std::priority_queue<uint32_t, std::vector<uint32_t>, std::greater<>> waiting;  // tasks
  };

  static constexpr uint32_t kNone = UINT32_MAX;

  void join_dependents();
  void prepare_reroutes();
  void step();
  double next_time() const;
  void handle(const Event& event);
  void begin_when_ready(uint32_t task);
  void begin(uint32_t task);
  void take_lane(uint32_t task);
  void leave_lane(uint32_t task);
  void go(uint32_t task);
  void enter(uint32_t task);
  void enter(uint32_t task, double bits);
  void reroute(uint32_t path, uint32_t other);
  void leave_for(uint32_t group, uint32_t path, uint32_t before);
  void carry_elsewhere(double bytes, uint32_t path, uint32_t other);
  void end_flows(uint32_t group);
  void end(uint32_t task);
  void share();
  void keep_shares();
  void serve(Group* group) const;
  void set_level(uint32_t group, double level);
  void mark_stale(uint32_t group);
  double end_of_first(const Group& group) const;
  void queue_end(uint32_t group);
  Status stalled() const;
  Outcome outcome();

  const Simulation& of_;
  FairShares shares_;
  std::vector<uint32_t> group_of_;  // by task
  std::vector<uint32_t> route_of_;  // by path: the one that its flows take now
  std::unordered_map<uint32_t, std::vector<uint32_t>> tasks_of_path_;  // of those that change
  std::vector<uint32_t> waits_for_;   // by task: tasks that have to end before it
  std::vector<uint32_t> dependents_;  // of task t: from first_dependent_[t] to [t + 1]
  std::vector<uint32_t> first_dependent_;
  std::vector<Lane> lanes_;
  std::vector<Group> groups_;
  std::vector<uint32_t> stale_groups_;  // whose flows have changed since links were shared
  std::vector<uint32_t> moved_groups_;  // at now_s_
  std::vector<double> capacities_;      // now
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  Earliest ends_;  // by group: when its first flow is nearly done
  const double resolution_s_;
  double now_s_ = 0;
  double next_share_s_ = 0;  // at the earliest
  bool is_share_queued_ = false;
  bool has_changed_ = false;  // something that shares_ has to know
  size_t num_ended_ = 0;
  Outcome outcome_;
};

}  // namespace dmlcomm::sim
