#include "schedule/price/task_list.h"

#include <algorithm>
#include <functional>
#include <queue>
#include <utility>

#include "base/check.h"
#include "schedule/algorithms.h"
#include "schedule/message_matching.h"
#include "schedule/planner.h"
#include "schedule/price/sized_shape.h"

namespace dmlcomm::schedule {
namespace {

// Makes the list out of *units*, each a copy, or a message with the steps at both of its ends.
class Lister {
 public:
  Lister(const topology::Topology& topology, const std::vector<Schedule>& schedules,
         uint32_t element_bytes)
      : topology_(topology),
        schedules_(schedules),
        element_bytes_(element_bytes),
        matches_(*match_messages(schedules)) {}

  std::vector<Task> list() {
    const auto num_ranks = static_cast<uint32_t>(schedules_.size());
    for (uint32_t rank = 0; rank < num_ranks; ++rank) {
      done_by_.emplace_back(schedules_[rank].steps.size(), 0);
      tasks_.push_back({.kind = Task::Kind::begin, .rank = rank, .hops = {}, .after = {}});
    }
    for (const StepRef& unit : ordered_units()) add_unit(unit);
    for (uint32_t rank = 0; rank < num_ranks; ++rank) add_end(rank);
    return std::move(tasks_);
  }

 private:
  const Step& step(const StepRef& ref) const { return schedules_[ref.first].steps[ref.second]; }

  // The step that stands for a unit: the receipt of a message, a copy.
  StepRef unit_of(const StepRef& ref) const {
    return step(ref).kind == StepKind::send ? matches_[ref.first][ref.second] : ref;
  }

  // Calls with the steps of a unit: both ends of a message, a copy once.
  template <typename Call>
  void for_steps(const StepRef& unit, Call call) const {
    call(unit);
    if (receives(step(unit).kind)) call(matches_[unit.first][unit.second]);
  }

  // In an order in which each comes after those that it waits for, small steps first.
  std::vector<StepRef> ordered_units() const {
    std::vector<std::vector<uint32_t>> waits_for(schedules_.size());
    std::vector<std::vector<std::vector<StepRef>>> successors(schedules_.size());
    size_t num_units = 0;
    using Ready = std::pair<uint32_t, uint32_t>;  // (step, rank)
    std::priority_queue<Ready, std::vector<Ready>, std::greater<>> ready;
    for (uint32_t rank = 0; rank < schedules_.size(); ++rank) {
      waits_for[rank].resize(schedules_[rank].steps.size(), 0);
      successors[rank].resize(schedules_[rank].steps.size());
    }
    for (uint32_t rank = 0; rank < schedules_.size(); ++rank) {
      for (uint32_t i = 0; i < schedules_[rank].steps.size(); ++i) {
        const StepRef unit{rank, i};
        if (step(unit).kind == StepKind::send) continue;
        ++num_units;
        for_steps(unit, [&](const StepRef& end) {
          for (uint32_t dep : step(end).deps) {
            const StepRef before = unit_of({end.first, dep});
            successors[before.first][before.second].push_back(unit);
            ++waits_for[rank][i];
          }
        });
        if (waits_for[rank][i] == 0) ready.push({i, rank});
      }
    }
    std::vector<StepRef> order;
    while (!ready.empty()) {
      const auto [i, rank] = ready.top();
      ready.pop();
      order.push_back({rank, i});
      for (const StepRef& next : successors[rank][i]) {
        if (--waits_for[next.first][next.second] == 0) ready.push({next.second, next.first});
      }
    }
    DMLCOMM_CHECK(order.size() == num_units);
    return order;
  }

  uint32_t add(Task task) {
    tasks_.push_back(std::move(task));
    return static_cast<uint32_t>(tasks_.size() - 1);
  }

  // What a step waits for; without deps, for the call of the operation.
  void wait_for_deps(const StepRef& ref, std::vector<uint32_t>* after) const {
    if (step(ref).deps.empty()) after->push_back(ref.first);
    for (uint32_t dep : step(ref).deps) after->push_back(done_by_[ref.first][dep]);
  }

  void add_unit(const StepRef& unit) {
    const Step& own = step(unit);
    std::vector<uint32_t> after;
    for_steps(unit, [&](const StepRef& end) { wait_for_deps(end, &after); });
    std::sort(after.begin(), after.end());
    after.erase(std::unique(after.begin(), after.end()), after.end());
    const double bytes = static_cast<double>(own.range.length) * element_bytes_;
    const double work_s = topology_.gamma_s_per_byte * bytes;
    uint32_t last = 0;
    if (receives(own.kind)) {
      const StepRef& send = matches_[unit.first][unit.second];
      last = add_message(send.first, unit.first, own.rail, bytes, std::move(after));
      done_by_[send.first][send.second] = last;
      after = {last};
    }
    if (own.kind != StepKind::recv) {
      last = add({Task::Kind::work, unit.first, 0, work_s, 0, {}, std::move(after)});
    }
    done_by_[unit.first][unit.second] = last;
  }

  uint32_t add_message(uint32_t sender, uint32_t receiver, uint8_t rail, double bytes,
                       std::vector<uint32_t> after) {
    const topology::Link& link = topology_.link(sender, receiver);
    std::vector<Hop> hops = route(topology_, sender, receiver, rail);
    const double relays = hops.size() > 1 ? static_cast<double>(hops.size() - 1) : 0;
    const double latency_s = link.alpha_s + relays * topology_.relay_s;
    const uint32_t post =
        add({Task::Kind::post, sender, 0, link.overhead_s, 0, {}, std::move(after)});
    return add({Task::Kind::message, sender, receiver, latency_s, bytes, std::move(hops), {post}});
  }

  // A rank has its result when all steps are done for which no other one of it waits.
  void add_end(uint32_t rank) {
    const std::vector<Step>& steps = schedules_[rank].steps;
    std::vector<bool> is_waited_for(steps.size(), false);
    for (const Step& one : steps) {
      for (uint32_t dep : one.deps) is_waited_for[dep] = true;
    }
    Task end{.kind = Task::Kind::end, .rank = rank, .hops = {}, .after = {rank}};
    for (size_t i = 0; i < steps.size(); ++i) {
      if (!is_waited_for[i]) end.after.push_back(done_by_[rank][i]);
    }
    add(std::move(end));
  }

  const topology::Topology& topology_;
  const std::vector<Schedule>& schedules_;
  const double element_bytes_;
  const Matches matches_;
  std::vector<Task> tasks_;
  std::vector<std::vector<uint32_t>> done_by_;  // by rank and step: the task that completes it
};

std::string names_of_schedules(OpKind kind, const topology::Topology& topology) {
  std::string names;
  for (const Algorithm& algorithm : all_algorithms()) {
    if (algorithm.kind != kind || !algorithm.is_schedule()) continue;
    if (!algorithm.applies(topology)) continue;
    names += (names.empty() ? "" : ", ") + std::string(algorithm.name);
  }
  return names;
}

}  // namespace

Result<TaskList> list_tasks(const topology::Topology& topology, const topology::Topology& job,
                            OpKind kind, uint64_t bytes, uint32_t element_bytes,
                            const std::string& name) {
  DMLCOMM_RETURN_IF_ERROR(topology::validate(topology));
  if (element_bytes == 0) return Status(StatusCode::invalid_argument, "elements have 0 bytes");
  const OpShape shape = sized_shape(kind, topology.num_ranks(), bytes, element_bytes);
  const Algorithm* algorithm = find_algorithm(kind, name);
  if (name.empty()) {
    Planner planner(job, "");
    DMLCOMM_RETURN_IF_ERROR(planner.status());
    algorithm = &planner.choose(shape_of_rank(shape, 0));
  }
  if (algorithm == nullptr || !algorithm->is_schedule() || !algorithm->applies(topology)) {
    return Status(StatusCode::invalid_argument, to_string(kind), " has no algorithm \"", name,
                  "\" that sends messages on this network: expected one of ",
                  names_of_schedules(kind, topology));
  }
  std::vector<Schedule> schedules;
  for (uint32_t rank = 0; rank < shape.num_ranks; ++rank) {
    schedules.push_back(algorithm->generate(shape_of_rank(shape, rank), topology));
  }
  return TaskList{algorithm->name, Lister(topology, schedules, element_bytes).list()};
}

}  // namespace dmlcomm::schedule
