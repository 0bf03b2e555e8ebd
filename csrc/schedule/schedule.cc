#include "schedule/schedule.h"

#include "base/str_cat.h"
#include "schedule/algorithms.h"

namespace dmlcomm::schedule {
namespace {

std::string range_text(const Range& range) {
  constexpr const char* kNames[] = {"input", "output", "scratch"};
  return str_cat(kNames[static_cast<size_t>(range.buffer)], "[", range.offset, ", ",
                 range.offset + range.length, ")");
}

}  // namespace

std::string to_string(const Step& step) {
  const std::string range = range_text(step.range);
  switch (step.kind) {
    case StepKind::send: return str_cat("send ", range, " to ", step.peer);
    case StepKind::recv: return str_cat("recv ", range, " from ", step.peer);
    case StepKind::recv_reduce: return str_cat("recv_reduce ", range, " from ", step.peer);
    case StepKind::copy: return str_cat("copy ", range_text(step.source), " to ", range);
  }
  return "unknown step";
}

std::string name_of(const Schedule& schedule) {
  if (schedule.algorithm == nullptr) return "a schedule";
  return str_cat(to_string(schedule.algorithm->kind), "_", schedule.algorithm->name);
}

}  // namespace dmlcomm::schedule
