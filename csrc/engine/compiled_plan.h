// CompiledPlan: a schedule with what its execution needs beside it, worked out once and shared by
// all operations of one shape.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "schedule/latency.h"
#include "schedule/schedule.h"

namespace dmlcomm::engine {

// Steps that are carried out together: one step, or a run of recv_reduce onto one range, which is
// reduced in one pass over all sources.
struct Task {
  uint32_t first = 0;  // index in CompiledPlan::order
  uint32_t num_steps = 0;
  uint32_t num_deps = 0;
};

// Bits of a step's number, which numbers its messages: in tags, and in the order of sends.
constexpr int kStepBits = 23;
constexpr uint32_t kMaxSteps = 1u << kStepBits;

// A rank that this one receives from.
struct Source {
  uint32_t peer = 0;
  uint64_t longest = 0;                   // message from it, in elements
  std::optional<uint64_t> first_message;  // shortest message to it that waits for nothing, if any
};

struct CompiledPlan {
  explicit CompiledPlan(std::shared_ptr<const schedule::Schedule> schedule);

  const schedule::Step& step(uint32_t id) const { return schedule->steps[id]; }

  std::shared_ptr<const schedule::Schedule> schedule;
  std::vector<uint32_t> order;  // step ids, task after task
  std::vector<Task> tasks;
  std::vector<uint32_t> task_of_step;
  std::vector<std::vector<uint32_t>> successors;  // of a task: tasks, one entry per dependency
  // Per step: which message between the two ranks it is, inside its stream.
  std::vector<uint32_t> message_index;
  std::vector<Source> sources;
  uint32_t max_sources = 0;  // of one task
  uint8_t algorithm = 0;     // its number in messages
  schedule::Latency latency;
  double latency_s = 0;      // at the alpha in use
  bool tells_rates = false;  // Tuner::tells_rates()
};

}  // namespace dmlcomm::engine
