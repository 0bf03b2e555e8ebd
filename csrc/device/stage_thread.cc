#include "device/stage_thread.h"

#include <pthread.h>
#include <sys/prctl.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/clock.h"
#include "base/exceptions.h"
#include "base/log.h"

namespace dmlcomm::device {
namespace {

// For so long the thread looks again and again after it has seen something new: copies of small
// tensors and their operations take about as long.
constexpr int64_t kPollNs = 50 * kNsPerUs;
// Then it sleeps for this part of the time since, so that an operation is late by so much at most.
constexpr int64_t kPartOfWait = 16;
constexpr int64_t kShortestNapNs = 5 * kNsPerUs;
constexpr int64_t kLongestNapNs = 200 * kNsPerUs;
// By how much the kernel may let it sleep longer.
constexpr unsigned long kTimerSlackNs = 1000;

// Between two looks that see nothing new.
class Pause {
 public:
  void news() { since_ns_ = now_ns(); }
  void rest() const {
    const int64_t waited_ns = now_ns() - since_ns_;
    if (waited_ns < kPollNs) return std::this_thread::yield();
    const int64_t nap_ns = std::clamp(waited_ns / kPartOfWait, kShortestNapNs, kLongestNapNs);
    std::this_thread::sleep_for(std::chrono::nanoseconds(nap_ns));
  }

 private:
  int64_t since_ns_ = now_ns();
};

// Who computes on with the result hears of the failure by the next wait().
void warn_once(const Status& status) {
  static std::atomic<bool> has_warned{false};
  if (has_warned.exchange(true)) return;
  log_warning("an operation on memory of a device has failed; its result is bytes of ones (NaN): ",
              status.to_string());
}

// The host's part is over.
void finish(const SlotUse& use, const Status& status, int source) {
  insist([&] { use.operation->note(status, source); });
  if (!status.ok()) {
    warn_once(status);
    std::memset(use.slot->memory().data, 0xff, use.bytes);
  }
  use.slot->finish(use.number);
}

void start_on_host(const Stage& stage) {
  const Status status = without_exceptions([&stage] {
    const engine::OperationPtr operation = stage.start(stage.use.slot->memory().data);
    operation->on_done([use = stage.use, weak = std::weak_ptr(operation)](const Status& ended) {
      const engine::OperationPtr of_host = weak.lock();
      finish(use, ended, of_host == nullptr ? -1 : of_host->source_rank());
    });
    return Status();
  });
  if (!status.ok()) finish(stage.use, status, -1);
}

}  // namespace

void StagedOperation::note(const Status& status, int source) {
  if (source >= 0) source_.store(source);
  if (status.ok()) return;
  std::lock_guard lock(noted_mutex_);
  if (noted_.ok()) noted_ = status;
}

Status StagedOperation::noted() const {
  std::lock_guard lock(noted_mutex_);
  return noted_;
}

StageThread::~StageThread() { stop({StatusCode::aborted, "the group was closed"}); }

Status StageThread::start() {
  return start_thread(&thread_, [this] { run(); });
}

void StageThread::add(const Line& line, Stage stage) {
  std::unique_lock lock(mutex_);
  if (stopping_) {
    lock.unlock();
    return give_up(stage);
  }
  ++num_pending_;
  added_.emplace_back(line, std::move(stage));
  lock.unlock();
  changed_.notify_all();
}

bool StageThread::drain(std::chrono::milliseconds limit) {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, limit, [this] { return num_pending_ == 0; });
}

void StageThread::stop(const Status& reason) {
  {
    std::lock_guard lock(mutex_);
    if (!std::exchange(stopping_, true)) reason_ = reason;
  }
  changed_.notify_all();
  std::call_once(joined_, [this] {
    if (thread_.joinable()) thread_.join();
  });
}

void StageThread::run() {
  pthread_setname_np(pthread_self(), "dmlcomm-stage");
  (void)prctl(PR_SET_TIMERSLACK, kTimerSlackNs);
  Pause pause;
  const Status failure = without_exceptions([&] {
    while (take_added()) advance() ? pause.news() : pause.rest();
    return Status();
  });
  if (!failure.ok()) {
    std::lock_guard lock(mutex_);
    if (!std::exchange(stopping_, true)) reason_ = failure;
  }
  insist([this] { give_up_all(); });
}

// Sleeps while nothing is pending. False: the thread ends.
bool StageThread::take_added() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return stopping_ || num_pending_ > 0; });
  if (stopping_) return false;
  for (; !added_.empty(); added_.pop_front()) {
    auto& [line, stage] = added_.front();
    lines_[line].push_back(std::move(stage));  // where there is memory for it
  }
  return true;
}

// Whether anything was new.
bool StageThread::advance() {
  bool moved = false;
  const size_t num_started = start_filled(&moved);
  const size_t num_over = num_started + end_freed();
  if (num_over == 0) return moved;
  {
    std::lock_guard lock(mutex_);
    num_pending_ -= num_over;
  }
  changed_.notify_all();
  return true;
}

// How many have started of those that are not last.
size_t StageThread::start_filled(bool* moved) {
  size_t num_started = 0;
  for (auto it = lines_.begin(); it != lines_.end();) {
    std::deque<Stage>& stages = it->second;
    while (!stages.empty() && stages.front().use.slot->is_filled(stages.front().use.number)) {
      const Stage& stage = stages.front();
      stage.is_last ? ending_.push_back(stage.use) : void(++num_started);
      start_on_host(stage);
      stages.pop_front();
      *moved = true;
    }
    it = stages.empty() ? lines_.erase(it) : std::next(it);
  }
  return num_started;
}

// How many operations have ended. The device takes the results of a last stage after those before.
size_t StageThread::end_freed() {
  size_t num_ended = 0;
  for (auto it = ending_.begin(); it != ending_.end();) {
    if (!it->slot->is_free(it->number)) {
      ++it;
      continue;
    }
    it->operation->complete(it->operation->noted());
    it = ending_.erase(it);
    ++num_ended;
  }
  return num_ended;
}

// After stopping_, when reason_ is constant.
void StageThread::give_up(const Stage& stage) const {
  finish(stage.use, reason_, -1);
  if (stage.is_last) stage.use.operation->complete(stage.use.operation->noted());
}

// Goes on where it was when there was no memory: no use of a slot is finished after a later one.
void StageThread::give_up_all() {
  for (; !lines_.empty(); lines_.erase(lines_.begin())) {
    std::deque<Stage>& stages = lines_.begin()->second;
    for (; !stages.empty(); stages.pop_front()) give_up(stages.front());
  }
  for (; !ending_.empty(); ending_.pop_front()) {
    const SlotUse& use = ending_.front();
    use.operation->note(reason_, -1);
    use.operation->complete(use.operation->noted());
  }
  for (; !added_.empty(); added_.pop_front()) give_up(added_.front().second);
  {
    std::lock_guard lock(mutex_);
    num_pending_ = 0;
  }
  changed_.notify_all();
}

}  // namespace dmlcomm::device
