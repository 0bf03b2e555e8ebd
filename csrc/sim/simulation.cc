#include "sim/simulation.h"

#include <algorithm>
#include <utility>

#include "sim/max_min_rates.h"
#include "sim/play.h"

namespace dmlcomm::sim {
namespace {

// Of bytes or seconds, and of a link in bit/s. Times stay finite, however many tasks there are.
constexpr double kMostAmount = 1e18;
constexpr double kLeastCapacity = 1e-30;

Status check_amount(const std::string& who, const char* what, double amount, const char* unit) {
  if (amount >= 0 && amount <= kMostAmount) return {};
  return invalid(who, " has the ", what, " ", amount, ": expected 0 to ", kMostAmount, " ", unit);
}

Status check_speed(const std::string& who, double capacity) {
  DMLCOMM_RETURN_IF_ERROR(check_capacity(who, capacity));
  if (capacity == 0 || capacity >= kLeastCapacity) return {};
  return invalid(who, " has the capacity ", capacity, ": expected 0, or ", kLeastCapacity,
                 " bits per second or more");
}

}  // namespace

Result<Simulation> Simulation::make(std::vector<double> capacities,
                                    std::vector<double> latencies_s) {
  for (size_t link = 0; link < capacities.size(); ++link) {
    DMLCOMM_RETURN_IF_ERROR(check_speed(str_cat("link ", link), capacities[link]));
  }
  if (!latencies_s.empty() && latencies_s.size() != capacities.size()) {
    return invalid("there are ", capacities.size(), " capacities, but ", latencies_s.size(),
                   " latencies: give one to each link, or none at all");
  }
  latencies_s.resize(capacities.size(), 0);
  for (size_t link = 0; link < latencies_s.size(); ++link) {
    DMLCOMM_RETURN_IF_ERROR(
        check_amount(str_cat("link ", link), "latency", latencies_s[link], "seconds"));
  }
  Simulation simulation;
  simulation.capacities_ = std::move(capacities);
  simulation.latencies_s_ = std::move(latencies_s);
  return simulation;
}

std::string Simulation::name(TaskId task) const {
  return str_cat(tasks_[static_cast<size_t>(task)].is_flow ? "flow " : "computation ", task);
}

Status Simulation::check_start(const std::string& who, double start_s,
                               const std::vector<TaskId>& after, int64_t lane) const {
  DMLCOMM_RETURN_IF_ERROR(check_amount(who, "start", start_s, "seconds"));
  if (lane < kNoLane) return invalid(who, " has the lane ", lane, ": expected 0 or more");
  for (TaskId task : after) {
    if (task >= 0 && static_cast<size_t>(task) < tasks_.size()) continue;
    return invalid(who, " comes after task ", task, ", but only ", tasks_.size(),
                   " tasks were added before it: add the other one first");
  }
  return {};
}

Result<TaskId> Simulation::add_flow(const FlowSpec& spec) {
  const std::string who = str_cat("flow ", tasks_.size());
  DMLCOMM_RETURN_IF_ERROR(check_path(who, spec.path, capacities_.size()));
  DMLCOMM_RETURN_IF_ERROR(check_amount(who, "size", spec.bytes, "bytes"));
  DMLCOMM_RETURN_IF_ERROR(check_weight(who, spec.weight));
  DMLCOMM_RETURN_IF_ERROR(check_priority(who, spec.priority));
  DMLCOMM_RETURN_IF_ERROR(check_start(who, spec.start_s, spec.after, spec.lane));
  const uint32_t path = path_id(spec.path);
  Task task{};
  task.start_s = spec.start_s;
  task.seconds = path == kNone ? 0 : path_latencies_s_[path];
  task.bytes = spec.bytes;
  task.weight = spec.weight;
  task.path = path;
  task.priority = static_cast<uint8_t>(spec.priority);
  task.is_flow = true;
  return add(task, spec.after, spec.lane);
}

Result<TaskId> Simulation::add_compute(const ComputeSpec& spec) {
  const std::string who = str_cat("computation ", tasks_.size());
  DMLCOMM_RETURN_IF_ERROR(check_amount(who, "duration", spec.seconds, "seconds"));
  DMLCOMM_RETURN_IF_ERROR(check_start(who, spec.start_s, spec.after, spec.lane));
  Task task{};
  task.start_s = spec.start_s;
  task.seconds = spec.seconds;
  task.path = kNone;
  return add(task, spec.after, spec.lane);
}

TaskId Simulation::add(Task task, const std::vector<TaskId>& after, int64_t lane) {
  task.lane = kNone;
  if (lane != kNoLane) {
    const auto next = static_cast<uint32_t>(lane_ids_.size());
    task.lane = lane_ids_.try_emplace(lane, next).first->second;
  }
  task.first_after = static_cast<uint32_t>(after_.size());
  task.num_after = static_cast<uint32_t>(after.size());
  after_.insert(after_.end(), after.begin(), after.end());
  tasks_.push_back(task);
  return static_cast<TaskId>(tasks_.size() - 1);
}

uint32_t Simulation::path_id(const std::vector<int64_t>& links) {
  if (links.empty()) return kNone;
  Path path(links.begin(), links.end());
  const auto [found, is_new] = path_ids_.try_emplace(path, static_cast<uint32_t>(paths_.size()));
  if (is_new) {
    double latency_s = 0;
    for (uint32_t link : path) latency_s += latencies_s_[link];
    path_latencies_s_.push_back(latency_s);
    paths_.push_back(std::move(path));
  }
  return found->second;
}

Status Simulation::change_capacity(int64_t link, double time_s, double capacity, double dark_s) {
  const std::string who = str_cat("the change of link ", link);
  if (link < 0 || static_cast<size_t>(link) >= capacities_.size()) {
    return invalid(who, ": there are ", capacities_.size(), " links, numbered from 0");
  }
  DMLCOMM_RETURN_IF_ERROR(check_amount(who, "time", time_s, "seconds"));
  DMLCOMM_RETURN_IF_ERROR(check_speed(who, capacity));
  DMLCOMM_RETURN_IF_ERROR(check_amount(who, "dark time", dark_s, "seconds"));
  const auto id = static_cast<uint32_t>(link);
  if (dark_s > 0) changes_.push_back({time_s, id, 0});
  changes_.push_back({time_s + dark_s, id, capacity});
  return {};
}

Status Simulation::change_path(const std::vector<int64_t>& path, double time_s,
                               const std::vector<int64_t>& other) {
  const std::string who = "the change of a path";
  for (const auto* links : {&path, &other}) {
    DMLCOMM_RETURN_IF_ERROR(check_path(who, *links, capacities_.size()));
    if (links->empty()) return invalid(who, " from or to one without links: give it some");
  }
  DMLCOMM_RETURN_IF_ERROR(check_amount(who, "time", time_s, "seconds"));
  reroutes_.push_back({time_s, path_id(path), path_id(other)});
  return {};
}

Result<Outcome> Simulation::run(const std::function<bool(size_t num_ended)>& may_go_on,
                                double resolution_s) const {
  DMLCOMM_RETURN_IF_ERROR(check_amount("the run", "resolution", resolution_s, "seconds"));
  return Play(*this, resolution_s).run(may_go_on);
}

}  // namespace dmlcomm::sim
