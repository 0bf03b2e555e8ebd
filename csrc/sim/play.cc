#include "sim/play.h"

#include <algorithm>
#include <limits>
#include <map>
#include <numeric>
#include <unordered_set>
#include <utility>

namespace dmlcomm::sim {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();
// Of a flow: as good as nothing.
constexpr double kNearlyNothing = 1e-9;
constexpr double kBitsPerByte = 8;
// Moments between two questions whether to go on.
constexpr uint32_t kPatience = 256;

}  // namespace

Play::Play(const Simulation& simulation, double resolution_s)
    : of_(simulation),
      shares_(simulation.capacities_),
      capacities_(simulation.capacities_),
      ends_(0),
      resolution_s_(resolution_s) {
  const size_t num_tasks = of_.tasks_.size();
  outcome_.starts_s.resize(num_tasks, 0);
  outcome_.ends_s.resize(num_tasks, 0);
  outcome_.link_bytes.resize(of_.capacities_.size(), 0);
  group_of_.resize(num_tasks, kNone);
  for (uint32_t id = 0; id < num_tasks; ++id) {
    const auto& task = of_.tasks_[id];
    waits_for_.push_back(task.num_after);
    if (task.path == Simulation::kNone) continue;
    group_of_[id] = shares_.group(of_.paths_[task.path], task.priority);
  }
  prepare_reroutes();
  lanes_.resize(of_.lane_ids_.size());
  groups_.resize(shares_.num_groups());
  ends_ = Earliest(groups_.size());
  join_dependents();
}

// All groups have to be there before a run begins.
void Play::prepare_reroutes() {
  route_of_.resize(of_.paths_.size());
  std::iota(route_of_.begin(), route_of_.end(), 0);
  for (const auto& change : of_.reroutes_) tasks_of_path_[change.path];
  if (tasks_of_path_.empty()) return;
  for (uint32_t id = 0; id < of_.tasks_.size(); ++id) {
    const auto found = tasks_of_path_.find(of_.tasks_[id].path);
    if (found != tasks_of_path_.end()) found->second.push_back(id);
  }
  for (const auto& change : of_.reroutes_) {
    for (uint32_t id : tasks_of_path_[change.path]) {
      shares_.group(of_.paths_[change.other], of_.tasks_[id].priority);
    }
  }
}

void Play::join_dependents() {
  const size_t num_tasks = of_.tasks_.size();
  first_dependent_.resize(num_tasks + 1, 0);
  for (TaskId task : of_.after_) ++first_dependent_[static_cast<size_t>(task) + 1];
  for (size_t i = 0; i < num_tasks; ++i) first_dependent_[i + 1] += first_dependent_[i];
  std::vector<uint32_t> next(first_dependent_.begin(), first_dependent_.end() - 1);
  dependents_.resize(of_.after_.size());
  for (uint32_t id = 0; id < num_tasks; ++id) {
    const auto& task = of_.tasks_[id];
    for (uint32_t i = 0; i < task.num_after; ++i) {
      const auto before = static_cast<size_t>(of_.after_[task.first_after + i]);
      dependents_[next[before]++] = id;
    }
  }
}

Result<Outcome> Play::run(const std::function<bool(size_t num_ended)>& may_go_on) {
  for (uint32_t i = 0; i < of_.changes_.size(); ++i) {
    events_.push({of_.changes_[i].time_s, What::change, i});
  }
  for (uint32_t i = 0; i < of_.reroutes_.size(); ++i) {
    events_.push({of_.reroutes_[i].time_s, What::reroute, i});
  }
  for (uint32_t id = 0; id < of_.tasks_.size(); ++id) {
    if (waits_for_[id] == 0) begin_when_ready(id);
  }
  for (uint32_t moment = 1; num_ended_ < of_.tasks_.size(); ++moment) {
    if (moment % kPatience == 0 && !may_go_on(num_ended_)) {
      return Status(StatusCode::aborted, "the simulation was stopped");
    }
    if (next_time() == kNever) return stalled();
    step();
  }
  return outcome();
}

double Play::next_time() const {
  double time_s = events_.empty() ? kNever : events_.top().time_s;
  if (ends_.time() < kNever) {
    time_s = std::min(time_s, end_of_first(groups_[ends_.index()]));
  }
  return std::max(time_s, now_s_);
}

// One moment: everything that happens at the same time.
void Play::step() {
  now_s_ = next_time();
  while (ends_.time() <= now_s_) end_flows(ends_.index());
  while (!events_.empty() && events_.top().time_s <= now_s_) {
    const Event event = events_.top();
    events_.pop();
    handle(event);
  }
  if (!std::exchange(has_changed_, false)) return;
  if (now_s_ >= next_share_s_) {
    share();
  } else {
    keep_shares();
  }
}

void Play::handle(const Event& event) {
  switch (event.what) {
    case What::change: {
      const auto& change = of_.changes_[event.id];
      capacities_[change.link] = change.capacity;
      shares_.set_capacity(change.link, change.capacity);
      has_changed_ = true;
      next_share_s_ = now_s_;  // a link that is slower now must not carry what it has carried
      return;
    }
    case What::reroute: {
      return reroute(of_.reroutes_[event.id].path, of_.reroutes_[event.id].other);
    }
    case What::begin: return begin(event.id);
    case What::arrived: return take_lane(event.id);
    case What::done: return end(event.id);
    case What::share: {
      is_share_queued_ = false;
      has_changed_ = true;
      return;
    }
  }
}

void Play::begin_when_ready(uint32_t task) {
  events_.push({std::max(now_s_, of_.tasks_[task].start_s), What::begin, task});
}

void Play::begin(uint32_t id) {
  outcome_.starts_s[id] = now_s_;
  const auto& task = of_.tasks_[id];
  if (!task.is_flow) return take_lane(id);
  events_.push({now_s_ + task.seconds, What::arrived, id});
}

void Play::take_lane(uint32_t id) {
  const uint32_t lane = of_.tasks_[id].lane;
  if (lane != kNone && std::exchange(lanes_[lane].is_busy, true)) {
    lanes_[lane].waiting.push(id);
  } else {
    go(id);
  }
}

void Play::leave_lane(uint32_t id) {
  if (of_.tasks_[id].lane == kNone) return;
  Lane& lane = lanes_[of_.tasks_[id].lane];
  lane.is_busy = !lane.waiting.empty();
  if (!lane.is_busy) return;
  const uint32_t next = lane.waiting.top();
  lane.waiting.pop();
  go(next);
}

// A task that has its lane for itself.
void Play::go(uint32_t id) {
  const auto& task = of_.tasks_[id];
  if (task.is_flow && group_of_[id] != kNone && task.bytes > 0) return enter(id);
  events_.push({now_s_ + (task.is_flow ? 0 : task.seconds), What::done, id});
}

void Play::end(uint32_t task) {
  leave_lane(task);
  outcome_.ends_s[task] = now_s_;
  ++num_ended_;
  for (uint32_t i = first_dependent_[task]; i < first_dependent_[task + 1]; ++i) {
    if (--waits_for_[dependents_[i]] == 0) begin_when_ready(dependents_[i]);
  }
}

// Brings the service of a group up to now.
void Play::serve(Group* group) const {
  group->service += group->level * (now_s_ - group->time_s);
  group->time_s = now_s_;
}

void Play::mark_stale(uint32_t id) {
  has_changed_ = true;
  Group& group = groups_[id];
  if (!std::exchange(group.is_moved, true)) moved_groups_.push_back(id);
  if (!std::exchange(group.is_stale, true)) stale_groups_.push_back(id);
}

void Play::enter(uint32_t id) {
  const auto& task = of_.tasks_[id];
  carry_elsewhere(task.bytes, task.path, route_of_[task.path]);
  enter(id, task.bytes * kBitsPerByte);
}

void Play::enter(uint32_t id, double bits) {
  const auto& task = of_.tasks_[id];
  Group& group = groups_[group_of_[id]];
  serve(&group);
  if (group.flows.empty()) group.service = 0;  // small numbers are exact
  const double need = bits / task.weight;
  const double done = group.service + need;
  group.flows.push({done - kNearlyNothing * need, done, id});
  group.weight += task.weight;
  mark_stale(group_of_[id]);
}

void Play::reroute(uint32_t path, uint32_t other) {
  std::unordered_set<uint32_t> left;
  for (uint32_t id : tasks_of_path_[path]) {
    left.insert(
        std::exchange(group_of_[id], shares_.group(of_.paths_[other], of_.tasks_[id].priority)));
  }
  const uint32_t before = std::exchange(route_of_[path], other);
  if (before == other) return;
  next_share_s_ = now_s_;
  for (uint32_t group : left) leave_for(group, path, before);
}

// The flows of a path that are under way in a group go on in the group that is theirs now.
void Play::leave_for(uint32_t id, uint32_t path, uint32_t before) {
  Group& group = groups_[id];
  serve(&group);
  std::vector<Flow> moving;
  decltype(group.flows) staying;
  for (; !group.flows.empty(); group.flows.pop()) {
    const Flow& flow = group.flows.top();
    if (of_.tasks_[flow.task].path == path) {
      moving.push_back(flow);
    } else {
      staying.push(flow);
    }
  }
  group.flows = std::move(staying);
  if (moving.empty()) return;
  for (const Flow& flow : moving) {
    const double weight = of_.tasks_[flow.task].weight;
    const double bits = std::max(0.0, flow.done - group.service) * weight;
    group.weight -= weight;
    carry_elsewhere(bits / kBitsPerByte, before, route_of_[path]);
    enter(flow.task, bits);
  }
  if (group.flows.empty()) group.weight = 0;
  ends_.set(id, kNever);
  mark_stale(id);
}

// outcome() counts all bytes of a flow for the path that it was added with.
void Play::carry_elsewhere(double bytes, uint32_t path, uint32_t other) {
  if (path == other) return;
  for (uint32_t link : of_.paths_[path]) outcome_.link_bytes[link] -= bytes;
  for (uint32_t link : of_.paths_[other]) outcome_.link_bytes[link] += bytes;
}

void Play::end_flows(uint32_t id) {
  Group& group = groups_[id];
  // The first one is nearly done, by its time; rounding must not say otherwise.
  serve(&group);
  group.service = std::max(group.service, group.flows.top().nearly_done);
  while (!group.flows.empty() && group.flows.top().nearly_done <= group.service) {
    const uint32_t task = group.flows.top().task;
    group.flows.pop();
    group.weight -= of_.tasks_[task].weight;
    end(task);
  }
  if (group.flows.empty()) group.weight = 0;
  ends_.set(id, kNever);
  mark_stale(id);
}

void Play::share() {
  for (uint32_t id : stale_groups_) shares_.set_weight(id, groups_[id].weight);
  shares_.update();
  for (uint32_t id : shares_.changed_groups()) {
    if (!groups_[id].is_stale) set_level(id, shares_.level(id));
  }
  for (uint32_t id : stale_groups_) {
    groups_[id].is_stale = groups_[id].is_moved = false;
    set_level(id, shares_.level(id));  // 0 for a group whose flows have all ended
  }
  stale_groups_.clear();
  moved_groups_.clear();
  next_share_s_ = now_s_ + resolution_s_;
}

// The flows of a group divide its present share among them until links are shared anew. The part
// that they leave unused is lost. No link carries more than it can.
void Play::keep_shares() {
  for (uint32_t id : moved_groups_) {
    Group& group = groups_[id];
    group.is_moved = false;
    const double granted = group.granted;
    set_level(id, group.flows.empty() ? 0 : granted / group.weight);
    group.granted = granted;
  }
  moved_groups_.clear();
  if (std::exchange(is_share_queued_, true)) return;
  events_.push({next_share_s_, What::share, 0});
}

// From now on.
void Play::set_level(uint32_t id, double level) {
  Group& group = groups_[id];
  serve(&group);
  group.level = level;
  group.granted = level * group.weight;
  if (!group.flows.empty()) {
    group.nearly_done = group.flows.top().nearly_done;
    group.done = group.flows.top().done;
  }
  queue_end(id);
}

double Play::end_of_first(const Group& group) const {
  const double left = group.done - group.service;
  return group.time_s + left / group.level;
}

void Play::queue_end(uint32_t id) {
  const Group& group = groups_[id];
  if (group.level == 0) return ends_.set(id, kNever);
  const double left = group.nearly_done - group.service;
  ends_.set(id, group.time_s + std::max(0.0, left) / group.level);
}

Status Play::stalled() const {
  for (const Group& group : groups_) {
    if (group.flows.empty()) continue;
    const uint32_t task = group.flows.top().task;
    for (uint32_t link : of_.paths_[route_of_[of_.tasks_[task].path]]) {
      if (capacities_[link] > 0) continue;
      return Status(StatusCode::invalid_argument, of_.tasks_.size() - num_ended_, " of ",
                    of_.tasks_.size(), " tasks never end: flow ", task, " waits for link ", link,
                    ", which has no capacity from ", now_s_,
                    " s on; give it one, or change it later");
    }
  }
  DMLCOMM_CHECK(false);  // tasks come after earlier ones only, so nothing else can wait for ever
}

Outcome Play::outcome() {
  outcome_.makespan_s = 0;
  for (double end_s : outcome_.ends_s) outcome_.makespan_s = std::max(outcome_.makespan_s, end_s);
  for (const auto& task : of_.tasks_) {
    if (task.path == Simulation::kNone) continue;
    for (uint32_t link : of_.paths_[task.path]) outcome_.link_bytes[link] += task.bytes;
  }
  return std::move(outcome_);
}

}  // namespace dmlcomm::sim
