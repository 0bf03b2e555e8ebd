#include "torch/flight_recorder.h"

#include "base/fork_guard.h"
#include "base/str_cat.h"
#include "torch/torch_version.h"

#define DMLCOMM_HAS_RECORDER_PER_BACKEND DMLCOMM_TORCH_AT_LEAST(2, 15)

#if DMLCOMM_HAS_RECORDER_PER_BACKEND
#include <c10/util/ApproximateClock.h>
#include <c10/util/thread_name.h>
#include <torch/csrc/profiler/combined_traceback.h>
#include <torch/csrc/distributed/c10d/FlightRecorder.hpp>

#include <algorithm>
#include <climits>
#include <mutex>
#include <thread>
#include <utility>
#endif

namespace dmlcomm::adaptor {

#if DMLCOMM_HAS_RECORDER_PER_BACKEND
namespace {

using Recorder = c10d::FlightRecorder<c10::Event>;
using Stack = std::shared_ptr<torch::CapturedTraceback>;

Recorder& recorder() {
  static Recorder* const instance = c10d::getFlightRecorder("dmlcomm");
  return *instance;
}

Stack gather_stack() {
  return torch::CapturedTraceback::gather(true, true, recorder().capture_cpp_stack_);
}

// Stands for all that have not been taken: torch's dumps need one in each entry.
const Stack& no_stack() {
  static const Stack* const none = new Stack(std::make_shared<torch::CapturedTraceback>());
  return *none;
}

// A system call, so once. A thread that gets another name later is still told apart by its id.
const std::string& thread_name() {
  thread_local const std::string name = c10::getThreadName();
  return name;
}

// Torch reads the size of its buffer as a number without sign: below 0 is off, too.
bool is_switched_on() { return recorder().enabled_ && recorder().max_entries_ <= INT_MAX; }

// An entry keeps at least so many bytes for each text and list. Smaller ones would be the pieces of
// memory that calls use again and again: until the recorder is full each call got others, which no
// cache held, and 1 KiB all_reduces of 2 ranks took 10 us, not 6.
constexpr size_t kRoom = 100;

// The place of the next entry, which becomes the newest. With the recorder's lock.
Recorder::Entry& next_entry() {
  Recorder& to = recorder();
  const size_t place = to.next_;
  if (to.entries_.size() < to.max_entries_) {
    to.entries_.emplace_back();
  }
  to.next_ = place + 1 == to.max_entries_ ? 0 : place + 1;
  Recorder::Entry& entry = to.entries_[place];
  entry.id_ = to.id_++;
  entry.reset_epoch_ = to.reset_epoch_;
  return entry;
}

// Null if it has been overwritten. With the recorder's lock.
Recorder::Entry* find_entry(size_t place, size_t id, size_t epoch) {
  Recorder& in = recorder();
  if (place >= in.entries_.size()) return nullptr;
  Recorder::Entry& entry = in.entries_[place];
  return entry.id_ == id && entry.reset_epoch_ == epoch ? &entry : nullptr;
}

template <typename Dims>
void describe(const std::vector<at::Tensor>& tensors, Dims& dims,
              std::vector<c10::ScalarType>& dtypes, c10::SmallVector<int64_t, 8>& sizes) {
  dims.clear();
  dtypes.clear();
  dtypes.reserve(kRoom);
  for (const at::Tensor& tensor : tensors) {
    dtypes.push_back(tensor.scalar_type());
    dims.push_back(tensor.dim());
    sizes.append(tensor.sizes().begin(), tensor.sizes().end());
  }
}

}  // namespace

bool FlightLog::is_available() { return true; }

FlightLog::FlightLog(c10d::Backend& backend, const std::vector<int>& global_ranks)
    : backend_(backend),
      fork_generation_(fork_generation()),
      global_ranks_(global_ranks.begin(), global_ranks.end()) {}

// As torch's analyser reads it: "dmlcomm:all_reduce", "dmlcomm:send 0->1", "dmlcomm:recv 1<-?".
void FlightLog::put_title(const Call& call, std::string& title) const {
  const int rank = backend_.getRank();
  switch (call.type) {
    case c10d::OpType::SEND: title = str_cat("dmlcomm:send ", rank, "->", call.peer); break;
    case c10d::OpType::RECV: title = str_cat("dmlcomm:recv ", rank, "<-", call.peer); break;
    case c10d::OpType::RECVANYSOURCE: title = str_cat("dmlcomm:recv ", rank, "<-?"); break;
    case c10d::OpType::_ALLREDUCE_SPARSE: title = "dmlcomm:all_reduce"; break;
    default:
      title.reserve(kRoom);
      title = call.title;  // in place: no memory is asked for
      break;
  }
}

FlightEntry FlightLog::begin(const Call& call) {
  Recorder& to = recorder();
  if (fork_generation_ != fork_generation() || !is_switched_on()) return {};
  const bool is_message = c10d::isP2POp(call.type);
  Stack stack = call.returns_early ? gather_stack() : no_stack();
  std::lock_guard lock(to.mutex_);
  if (status_ == nullptr) introduce_group();
  ++(is_message ? num_messages_ : num_collectives_);
  FlightEntry result;
  result.group_ = status_.get();
  result.place_ = to.next_;
  result.sequence_ = is_message ? -1 : num_collectives_;
  Recorder::Entry& entry = next_entry();
  result.id_ = entry.id_;
  result.epoch_ = entry.reset_epoch_;
  entry.pg_id_ = group_id_;
  entry.pg_name_ = group_name_;
  entry.collective_seq_id_ = static_cast<size_t>(num_collectives_);
  entry.p2p_seq_id_ = static_cast<size_t>(num_messages_);
  entry.op_id_ = static_cast<size_t>(num_collectives_ + num_messages_);
  put_title(call, entry.profiling_name_);
  entry.traceback_ = std::move(stack);
  entry.start_ = entry.end_ = nullptr;
  entry.time_created_ = c10::getTime();
  entry.timeout_ms_ = call.timeout.count();
  entry.isP2P_ = is_message;
  entry.duration_.reset();
  entry.time_discovered_started_.reset();
  entry.time_discovered_completed_.reset();
  entry.sizes_.clear();
  describe(call.inputs, entry.input_dims_, entry.input_dtypes_, entry.sizes_);
  describe(call.outputs, entry.output_dims_, entry.output_dtypes_, entry.sizes_);
  entry.thread_id_ = std::this_thread::get_id();
  entry.thread_name_ = thread_name();
  entry.retired_ = false;
  if (result.sequence_ >= 0) status_->lastEnqueuedSeq = result.sequence_;
  return result;
}

// At the first call: torch names a group after it has made its backend.
void FlightLog::introduce_group() {
  Recorder& to = recorder();
  status_ = std::make_shared<c10d::ProcessGroupStatus>();
  group_id_ = to.all_pg_status_.empty() ? 0 : to.all_pg_status_.rbegin()->first + 1;
  group_name_ = {backend_.getGroupUid(), backend_.getGroupDesc()};
  to.all_pg_status_[group_id_] = status_;
  to.pg_name_to_ranks_[group_name_] = global_ranks_;
  if (to.getRank() < 0) to.setRank(static_cast<int>(global_ranks_[backend_.getRank()]));
}

void FlightLog::regroup(const std::vector<int>& global_ranks) {
  Recorder& to = recorder();
  std::lock_guard lock(to.mutex_);
  global_ranks_.assign(global_ranks.begin(), global_ranks.end());
  if (status_ != nullptr) to.pg_name_to_ranks_[group_name_] = global_ranks_;
}

void FlightEntry::complete() const {
  if (is_empty()) return;
  std::lock_guard lock(recorder().mutex_);
  Recorder::Entry* const entry = find_entry(place_, id_, epoch_);
  if (entry != nullptr) {
    entry->time_discovered_started_ = entry->time_discovered_completed_ = c10::getTime();
    entry->retired_ = true;
  }
  group_->lastStartedSeq = std::max(group_->lastStartedSeq, sequence_);
  group_->lastCompletedSeq = std::max(group_->lastCompletedSeq, sequence_);
}

void FlightEntry::add_stack() const {
  if (is_empty()) return;
  Stack stack = gather_stack();
  std::lock_guard lock(recorder().mutex_);
  Recorder::Entry* const entry = find_entry(place_, id_, epoch_);
  if (entry != nullptr && entry->traceback_ == no_stack()) entry->traceback_ = std::move(stack);
}

#else

bool FlightLog::is_available() { return false; }

FlightLog::FlightLog(c10d::Backend& backend, const std::vector<int>&)
    : backend_(backend), fork_generation_(fork_generation()) {}

FlightEntry FlightLog::begin(const Call&) { return {}; }
void FlightLog::regroup(const std::vector<int>&) {}

void FlightEntry::complete() const {}
void FlightEntry::add_stack() const {}

#endif

}  // namespace dmlcomm::adaptor
