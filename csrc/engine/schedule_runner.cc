#include "engine/schedule_runner.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/alignment.h"
#include "base/check.h"
#include "engine/segments.h"
#include "kernels/reduce.h"

namespace dmlcomm::engine {
namespace {

using schedule::BufferId;
using schedule::Range;
using schedule::Step;
using schedule::StepKind;
using transport::RecvRequest;
using transport::SendRequest;

// Segments that a source may be ahead of the reduction where bytes are pushed (TCP).
constexpr size_t kWindowSegments = 4;

static_assert(schedule::kAnyRail == transport::kAnyRail);
static_assert(kMaxSteps - 1 <= transport::kMaxTagIndex);
static_assert(kWindowSegments * kMinSegmentBytes >= transport::kEagerBytes,
              "a message that comes early fits into the window");

}  // namespace

ScheduleRunner::ScheduleRunner(transport::Mesh& mesh, MemoryPool& pool, const OpState& op,
                               std::shared_ptr<const CompiledPlan> plan,
                               const transport::RankReport& report)
    : Runner(info_of(op, plan->algorithm)),
      mesh_(mesh),
      pool_(pool),
      op_(op),
      request_(op.request()),
      plan_(std::move(plan)),
      element_bytes_(size_of(request_.dtype)),
      report_(report) {}

ScheduleRunner::~ScheduleRunner() {
  for (MemoryPool::Block& block : blocks_) pool_.give_back(std::move(block));
  for (const auto& message : in_) {
    if (message != nullptr) pool_.give_back(std::move(message->block));
  }
}

Status ScheduleRunner::start() {
  waited_ns_ = op_.waited_ns();
  const size_t num_steps = plan_->schedule->steps.size();
  tasks_.resize(plan_->tasks.size());
  out_.resize(num_steps);
  in_.resize(num_steps);
  if (const size_t bytes = plan_->schedule->scratch_elements * element_bytes_; bytes > 0) {
    blocks_.push_back(pool_.take(bytes));
    scratch_ = BufferView(Span{blocks_.back().get(), bytes});
  }
  for (uint32_t task = 0; task < tasks_.size(); ++task) {
    tasks_[task].num_deps_left = plan_->tasks[task].num_deps;
  }
  for (uint32_t id = 0; id < num_steps; ++id) {
    const StepKind kind = plan_->step(id).kind;
    if (!receives(kind)) continue;
    post_receive(
        id, kind == StepKind::recv_reduce || tasks_[plan_->task_of_step[id]].num_deps_left == 0);
  }
  for (const Source& source : plan_->sources) {
    if (!must_open(source)) continue;
    mesh_.link(static_cast<int>(source.peer)).open(static_cast<uint32_t>(op_.sequence()), info());
  }
  for (uint32_t task = 0; task < tasks_.size(); ++task) {
    if (plan_->tasks[task].num_deps == 0 && !tasks_[task].active) activate(task);
  }
  return Status();
}

// Whether the source has to be told that this rank has begun: it sends a large message, or would
// hear nothing from this one for as long as it sends nothing itself, and could not tell what the
// other believes the operation to be.
bool ScheduleRunner::must_open(const Source& source) const {
  const uint64_t at_once = transport::kEagerBytes / element_bytes_;  // elements
  return source.longest > at_once || source.first_message.value_or(UINT64_MAX) > at_once;
}

void ScheduleRunner::post_receive(uint32_t id, bool ready) {
  const Step& step = plan_->step(id);
  in_[id] = std::make_unique<InMessage>();
  InMessage& message = *in_[id];
  message.tag = tag_of(id);
  message.op = info();
  message.bytes = step.range.length * element_bytes_;
  message.owner = this;
  message.task = plan_->task_of_step[id];
  message.peer = static_cast<int>(step.peer);
  message.ready = ready;
  if (step.kind == StepKind::recv) message.destination = at(step.range);
  mesh_.link(message.peer).recv(message);
}

transport::Tag ScheduleRunner::tag_of(uint32_t id) const {
  return transport::collective_tag(static_cast<uint32_t>(op_.sequence()),
                                   plan_->schedule->stream_of[id], plan_->message_index[id]);
}

std::byte* ScheduleRunner::at(const Range& range) const {
  const BufferView& buffer = range.buffer == BufferId::input    ? request_.input
                             : range.buffer == BufferId::output ? request_.output
                                                                : scratch_;
  return buffer.at(range.offset * element_bytes_, range.length * element_bytes_);
}

void ScheduleRunner::activate(uint32_t task) {
  tasks_[task].active = true;
  const uint32_t id = plan_->order[plan_->tasks[task].first];
  const Step& step = plan_->step(id);
  switch (step.kind) {
    case StepKind::send: {
      out_[id] = std::make_unique<OutMessage>();
      OutMessage& message = *out_[id];
      message.tag = tag_of(id);
      message.op = info();
      message.data = at(step.range);
      message.bytes = step.range.length * element_bytes_;
      message.rail = step.rail;
      message.order = {.ticket = op_.ticket(), .sequence = op_.sequence(), .step = id};
      message.age = op_.age();
      message.report = report_;
      message.tells_rate = plan_->tells_rates;
      message.owner = this;
      message.waited_ns = std::exchange(waited_ns_, -1);
      message.task = task;
      message.peer = static_cast<int>(step.peer);
      mesh_.link(message.peer).send(message);
      break;
    }
    case StepKind::recv: {
      InMessage& message = *in_[id];
      if (!message.ready) mesh_.link(message.peer).make_ready(message);
      working_.push_back(task);
      break;
    }
    case StepKind::recv_reduce: working_.push_back(task); break;
    case StepKind::copy:
      if (step.range.length > 0 && at(step.range) != at(step.source)) {
        std::memmove(at(step.range), at(step.source), step.range.length * element_bytes_);
      }
      finish(task);
      break;
  }
}

void ScheduleRunner::finish(uint32_t task) {
  DMLCOMM_CHECK(!tasks_[task].done);
  tasks_[task].done = true;
  ++num_done_;
  const Task& shape = plan_->tasks[task];
  for (uint32_t i = 0; i < shape.num_steps; ++i) {
    if (const auto& message = in_[plan_->order[shape.first + i]]) report_.merge(message->report);
  }
  for (uint32_t next : plan_->successors[task]) {
    if (--tasks_[next].num_deps_left == 0) activate(next);
  }
}

Status ScheduleRunner::advance(bool* moved) {
  // In the order in which they were sent, which keeps blocks in theirs
  // (schedule/algorithms/blocks.h). finish() may append to sent_ and working_ while they are
  // walked.
  for (size_t i = 0; i < sent_.size(); ++i) {
    finish(sent_[i]);
    *moved = true;
  }
  sent_.clear();
  for (size_t i = 0; i < working_.size();) {
    const uint32_t task = working_[i];
    DMLCOMM_RETURN_IF_ERROR(work(task, moved));
    if (tasks_[task].done) {
      working_.erase(working_.begin() + static_cast<ptrdiff_t>(i));
    } else {
      ++i;
    }
  }
  return Status();
}

Status ScheduleRunner::work(uint32_t task, bool* moved) {
  const uint32_t id = plan_->order[plan_->tasks[task].first];
  if (plan_->step(id).kind == StepKind::recv_reduce) return reduce_some(task, moved);
  InMessage& message = *in_[id];
  if (message.offered) return pull_some(task, message, moved);
  if (message.done) {
    finish(task);
    *moved = true;
  }
  return Status();
}

// --- messages ---

Status ScheduleRunner::pull_some(uint32_t task, InMessage& message, bool* moved) {
  bool complete = false;
  DMLCOMM_RETURN_IF_ERROR(mesh_.link(message.peer).take_offer(message, moved, &complete));
  if (!complete) return Status();
  *moved = true;
  message.done = true;
  finish(task);
  return Status();
}

size_t ScheduleRunner::segment_bytes() const {
  return segment_bytes_for(plan_->max_sources, kMaxStreamSegmentBytes);
}

// Reduces the next segment if all sources have it.
Status ScheduleRunner::reduce_some(uint32_t task, bool* moved) {
  const Task& shape = plan_->tasks[task];
  size_t& position = tasks_[task].position;
  const size_t total = in_[plan_->order[shape.first]]->bytes;
  const size_t bytes = std::min(segment_bytes(), total - position);
  bool all_there = true;
  for (uint32_t i = 0; i < shape.num_steps; ++i) {
    const InMessage& message = *in_[plan_->order[shape.first + i]];
    all_there = all_there && message.arrived >= position + bytes &&
                (total > 0 || message.done || message.offered);
  }
  if (!all_there) return Status();
  bool missing = false;
  if (bytes > 0) DMLCOMM_RETURN_IF_ERROR(reduce_segment(task, position, bytes, &missing));
  if (missing) return Status();
  position += bytes;
  *moved = true;
  release_sources(task, position, position == total);
  if (position == total) finish(task);
  return Status();
}

// A source that is still being read, or whose rank has given up, leaves the segment as it is.
Status ScheduleRunner::reduce_segment(uint32_t task, size_t position, size_t bytes, bool* missing) {
  const Task& shape = plan_->tasks[task];
  const Step& first = plan_->step(plan_->order[shape.first]);
  const Step& last = plan_->step(plan_->order[shape.first + shape.num_steps - 1]);
  if (staging_ == nullptr) {
    blocks_.push_back(pool_.take(plan_->max_sources * segment_bytes()));
    staging_ = blocks_.back().get();
  }
  std::vector<const void*> sources(shape.num_steps + 1);
  sources[0] = at(first.source) + position;
  for (uint32_t i = 0; i < shape.num_steps; ++i) {
    InMessage& message = *in_[plan_->order[shape.first + i]];
    Result<const std::byte*> data =
        mesh_.link(message.peer).fetch(message, position, bytes, staging_ + i * segment_bytes());
    if (!data.ok()) return data.status();
    *missing = *missing || *data == nullptr;
    sources[i + 1] = *data;
  }
  if (*missing) return Status();
  if (first.received_first) std::swap(sources[0], sources[1]);
  const bool divides = request_.reduce_op == ReduceOp::avg && last.finalizes;
  kernels::reduce(at(first.range) + position, sources.data(), sources.size(),
                  bytes / element_bytes_, request_.dtype, request_.reduce_op,
                  divides ? request_.shape.num_ranks : 1);
  return Status();
}

void ScheduleRunner::release_sources(uint32_t task, size_t position, bool complete) {
  const Task& shape = plan_->tasks[task];
  for (uint32_t i = 0; i < shape.num_steps; ++i) {
    InMessage& message = *in_[plan_->order[shape.first + i]];
    transport::Link& link = mesh_.link(message.peer);
    link.release(message, position);
    if (!complete) continue;
    message.done = true;
    if (message.offered) link.finish_offer(message);
    // While it is in the cache, for the next message.
    pool_.give_back(std::exchange(message.block, {}));
    message.window = nullptr;
  }
}

void ScheduleRunner::on_sent(SendRequest& request) {
  auto& message = static_cast<OutMessage&>(request);
  message.done = true;
  sent_.push_back(message.task);
}

void ScheduleRunner::on_arrived(RecvRequest& request) {
  auto& message = static_cast<InMessage&>(request);
  // A streamed message is done when its reduction is; offered ones are worked on by advance().
  const bool direct =
      plan_->step(plan_->order[plan_->tasks[message.task].first]).kind == StepKind::recv;
  if (!message.offered && message.arrived == message.bytes && (direct || message.bytes == 0)) {
    message.done = true;
  }
}

void ScheduleRunner::provide_window(RecvRequest& request) {
  const size_t whole = round_up(request.bytes, kMinSegmentBytes);
  request.window_bytes =
      request.scattered ? whole : std::min(whole, kWindowSegments * segment_bytes());
  // A window that is smaller than the message holds whole segments; a larger one never wraps.
  if (request.window_bytes >= request.bytes) {
    request.window_bytes = std::max(whole, segment_bytes());
  }
  auto& message = static_cast<InMessage&>(request);
  pool_.give_back(std::exchange(message.block, pool_.take(request.window_bytes)));
  request.window = message.block.get();
}

bool ScheduleRunner::waits_for(int peer) const {
  const auto unsent = [peer](const auto& m) { return m && m->peer == peer && !m->done; };
  // Bytes that have arrived need their sender no more, also while they wait to be reduced.
  const auto missing = [peer](const auto& m) {
    return m && m->peer == peer && !m->done &&
           (m->offered || m->arrived < m->bytes || m->bytes == 0);
  };
  return std::any_of(out_.begin(), out_.end(), unsent) ||
         std::any_of(in_.begin(), in_.end(), missing);
}

}  // namespace dmlcomm::engine
