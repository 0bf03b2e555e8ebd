#include "schedule/schedule_builder.h"

#include <algorithm>

namespace dmlcomm::schedule {
namespace {

bool overlaps(const Range& a, const Range& b) {
  return a.buffer == b.buffer && a.offset < b.offset + b.length && b.offset < a.offset + a.length;
}

bool covers(const Range& outer, const Range& inner) {
  return outer.buffer == inner.buffer && outer.offset <= inner.offset &&
         inner.offset + inner.length <= outer.offset + outer.length;
}

}  // namespace

ScheduleBuilder::ScheduleBuilder(const OpShape& shape)
    : rank_(shape.rank), output_may_be_input_(shape.kind == OpKind::reduce) {}

void ScheduleBuilder::on(uint16_t stream, uint8_t rail) {
  stream_ = stream;
  rail_ = rail;
  schedule_.num_streams = std::max<uint16_t>(schedule_.num_streams, stream + 1);
}

void ScheduleBuilder::send(const Range& range, uint32_t peer) {
  add({StepKind::send, rail_, peer, range, {}, {}, false});
}

void ScheduleBuilder::recv(const Range& range, uint32_t peer) {
  add({StepKind::recv, rail_, peer, range, {}, {}, false});
}

void ScheduleBuilder::recv_reduce(const Range& range, const Range& source, uint32_t peer,
                                  bool finalizes) {
  add({StepKind::recv_reduce, rail_, peer, range, source, {}, finalizes});
}

void ScheduleBuilder::recv_reduce_received_first(const Range& range, const Range& source,
                                                 uint32_t peer, bool finalizes) {
  add({StepKind::recv_reduce, rail_, peer, range, source, {}, finalizes, true});
}

void ScheduleBuilder::recv_reduce_run(const Range& range, const Range& source,
                                      const std::vector<uint32_t>& peers, bool finalizes) {
  for (size_t i = 0; i < peers.size(); ++i) {
    const bool is_last = i + 1 == peers.size();
    recv_reduce(range, i == 0 ? source : range, peers[i], finalizes && is_last);
  }
}

void ScheduleBuilder::copy(const Range& range, const Range& source) {
  add({StepKind::copy, kAnyRail, rank_, range, source, {}, false});
}

void ScheduleBuilder::signal(uint32_t peer) {
  append({StepKind::send, rail_, peer, {}, {}, awaited_signals_, false});
}

void ScheduleBuilder::await_signal(uint32_t peer) {
  awaited_signals_.push_back(next_id());
  append({StepKind::recv, rail_, peer, {}, {}, {}, false});
}

void ScheduleBuilder::add(Step step) {
  if (step.range.length == 0) return;
  if (continues_run(step)) return extend_run(std::move(step));
  const bool reads_source = step.kind == StepKind::copy || step.kind == StepKind::recv_reduce;
  if (step.kind == StepKind::send) note_read(step.range, &step.deps);
  if (reads_source) note_read(step.source, &step.deps);
  if (step.kind != StepKind::send) note_write(step.range, &step.deps);
  drop_implied(&step.deps);
  append(std::move(step));
}

void ScheduleBuilder::append(Step step) {
  schedule_.steps.push_back(std::move(step));
  schedule_.stream_of.push_back(stream_);
}

// The order inside a run is part of a schedule's meaning and needs no dependency. The run's earlier
// steps need the same memory, so the last one stands for all of them.
void ScheduleBuilder::extend_run(Step step) {
  step.deps = schedule_.steps.back().deps;
  const uint32_t previous = next_id() - 1;
  for (Access& access : live_) {
    if (access.step == previous) access.step = next_id();
  }
  append(std::move(step));
}

bool ScheduleBuilder::continues_run(const Step& step) const {
  if (schedule_.steps.empty() || schedule_.stream_of.back() != stream_) return false;
  return are_in_a_run(schedule_.steps.back(), step) && step.source == step.range;
}

void ScheduleBuilder::note_read(const Range& range, std::vector<uint32_t>* deps) {
  const Range read = placed(range);
  for (const Access& access : live_) {
    if (access.is_write && overlaps(access.range, read)) deps->push_back(access.step);
  }
  live_.push_back({read, next_id(), false});
}

// A covered access needs no memory of its own: a step that conflicts with it conflicts with
// this write, which waits for it.
void ScheduleBuilder::note_write(const Range& range, std::vector<uint32_t>* deps) {
  const Range written = placed(range);
  for (const Access& access : live_) {
    if (access.step != next_id() && overlaps(access.range, written)) deps->push_back(access.step);
  }
  std::erase_if(live_, [&](const Access& access) { return covers(written, access.range); });
  live_.push_back({written, next_id(), true});
}

// Sorts, and leaves out what another dependency waits for directly.
void ScheduleBuilder::drop_implied(std::vector<uint32_t>* deps) const {
  std::sort(deps->begin(), deps->end());
  deps->erase(std::unique(deps->begin(), deps->end()), deps->end());
  std::vector<uint32_t> implied;
  for (uint32_t dep : *deps) {
    const auto& its_deps = schedule_.steps[dep].deps;
    implied.insert(implied.end(), its_deps.begin(), its_deps.end());
  }
  std::sort(implied.begin(), implied.end());
  std::erase_if(
      *deps, [&](uint32_t dep) { return std::binary_search(implied.begin(), implied.end(), dep); });
}

Range ScheduleBuilder::placed(Range range) const {
  if (output_may_be_input_ && range.buffer == BufferId::output) range.buffer = BufferId::input;
  return range;
}

}  // namespace dmlcomm::schedule
