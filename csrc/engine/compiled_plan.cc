#include "engine/compiled_plan.h"

#include <algorithm>
#include <map>
#include <tuple>

#include "base/check.h"
#include "schedule/algorithms.h"

namespace dmlcomm::engine {
namespace {

using schedule::Range;
using schedule::Schedule;
using schedule::Step;
using schedule::StepKind;

// Whether step `id` continues the run of reductions that ends with `previous`. Its dependencies
// must not reach into the run by way of other steps; an edge to the run itself is the order in it.
bool continues_run(const Schedule& schedule, uint32_t previous, uint32_t id, uint32_t first) {
  const Step& a = schedule.steps[previous];
  const Step& b = schedule.steps[id];
  if (!schedule::are_in_a_run(a, b) || b.source != b.range) return false;
  if (schedule.stream_of[previous] != schedule.stream_of[id] || a.finalizes) return false;
  if (a.received_first || b.received_first) return false;
  const auto& before = schedule.steps[first].deps;
  return std::all_of(b.deps.begin(), b.deps.end(), [&](uint32_t dep) {
    return (dep >= first && dep <= previous) ||
           std::find(before.begin(), before.end(), dep) != before.end();
  });
}

std::vector<Source> sources_of(const Schedule& schedule) {
  std::map<uint32_t, Source> sources;
  for (const Step& step : schedule.steps) {
    if (!receives(step.kind)) continue;
    Source& source = sources[step.peer];
    source.peer = step.peer;
    source.longest = std::max(source.longest, step.range.length);
  }
  for (const Step& step : schedule.steps) {
    const auto source = step.kind == StepKind::send ? sources.find(step.peer) : sources.end();
    if (source == sources.end() || !step.deps.empty()) continue;
    std::optional<uint64_t>& first_message = source->second.first_message;
    first_message = std::min(first_message.value_or(step.range.length), step.range.length);
  }
  std::vector<Source> list;
  for (const auto& [peer, source] : sources) list.push_back(source);
  return list;
}

}  // namespace

CompiledPlan::CompiledPlan(std::shared_ptr<const Schedule> plan) : schedule(std::move(plan)) {
  const auto num_steps = static_cast<uint32_t>(schedule->steps.size());
  DMLCOMM_CHECK(num_steps <= kMaxSteps);
  task_of_step.resize(num_steps);
  message_index.resize(num_steps);
  for (uint32_t id = 0; id < num_steps; ++id) {
    const bool joins = id > 0 && continues_run(*schedule, id - 1, id, order[tasks.back().first]);
    if (!joins) tasks.push_back({static_cast<uint32_t>(order.size()), 0, 0});
    order.push_back(id);
    ++tasks.back().num_steps;
    task_of_step[id] = static_cast<uint32_t>(tasks.size() - 1);
  }
  successors.resize(tasks.size());
  // (stream, peer, whether we send) -> messages so far.
  std::map<std::tuple<uint16_t, uint32_t, bool>, uint32_t> messages;
  for (uint32_t id = 0; id < num_steps; ++id) {
    const Step& s = step(id);
    for (uint32_t dep : s.deps) {
      if (task_of_step[dep] == task_of_step[id]) continue;
      successors[task_of_step[dep]].push_back(task_of_step[id]);
      ++tasks[task_of_step[id]].num_deps;
    }
    if (s.kind == StepKind::copy) continue;
    const bool sends = s.kind == StepKind::send;
    message_index[id] = messages[{schedule->stream_of[id], s.peer, sends}]++;
  }
  sources = sources_of(*schedule);
  for (const Task& task : tasks) max_sources = std::max(max_sources, task.num_steps);
  algorithm = schedule::number_of(*schedule->algorithm);
}

}  // namespace dmlcomm::engine
