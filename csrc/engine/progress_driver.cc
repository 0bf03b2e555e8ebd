#include "engine/progress_driver.h"

#include <sched.h>

#include <algorithm>
#include <utility>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "base/exceptions.h"

namespace dmlcomm::engine {
namespace {

// Sockets and the clock are looked at once in so many steps: both cost more than a look at shared
// memory, and neither is urgent there.
constexpr uint32_t kStepsPerLook = 64;
// If ranks leave no core free a poller yields, which costs the others little, and waits longer: it
// polls for so many times DMLCOMM_SPIN_US before it sleeps. With 4 ranks on
// 2 cores a 64 KiB all-reduce took 236 us with 1, where sleeping and waking dominate; and of 2
// ranks one that slept was often woken on the core of the other, where it stayed.
constexpr int64_t kYieldFactor = 20;
// With one rank per core each has its core most of the time, and yielding only delays its news: it
// begins after this time. (2 ranks, 64 KiB: 19.2 us, not 21.5.) Not if others poll there that the
// group does not know of: a worker's 1 KiB by a proxy took 36 us, not 31, with its server on the
// same two cores.
constexpr int64_t kYieldAfterNs = 5 * kNsPerUs;
// A look goes over all links, and each handshake has several events. Many ranks that connect to
// each other let so much time pass per rank, so that one look serves many events.
constexpr std::chrono::microseconds kConnectingPause{20};
// How soon call() looks again whether the driver has left without an answer.
constexpr std::chrono::milliseconds kCallRetry{5};
// After this time the progress thread takes over the operations that a caller leaves behind. At
// once, the two would take turns for every operation of a caller that waits for many: 40 MB in
// pieces over TCP took 22 ms, not 19.
constexpr std::chrono::microseconds kHandOverTime{100};

void relax() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace

ProgressDriver::ProgressDriver(transport::Mesh& mesh, OperationQueue& queue, Steppable& steps,
                               const Config& config, bool shares_cores)
    : mesh_(mesh), queue_(queue), steps_(steps) {
  const transport::Job& job = mesh.job();
  const int cores = job.own_host().num_cores;
  const int ranks = job.num_ranks_on_host();
  const int64_t spin_ns = config.spin_us * kNsPerUs;
  crowded_ = ranks >= cores;
  // Also where hosts share the cores of one kernel: in a lab of 2 cores a worker, its proxy and a
  // server, of which each knows one other, took 133 us for what takes 39 us.
  yields_ = job.num_ranks_on_machine() >= cores;
  poll_ns_ = crowded_ ? kYieldFactor * spin_ns : spin_ns;
  if (ranks > cores) connecting_pause_ = ranks * kConnectingPause;
  yield_after_ns_ = ranks > cores || shares_cores ? 0 : kYieldAfterNs;
  // Hosts that share the cores of one kernel, as in a lab: a rank that polls takes the time of
  // those it waits for. 9 hosts on 2 cores took 35 ms for 64 KiB when they polled and yielded, 8 ms
  // asleep.
  if (ranks <= cores && job.num_ranks_on_machine() > cores) poll_ns_ = 0;
}

Status ProgressDriver::start(std::shared_ptr<void> owner) {
  return start_thread(&thread_, [this, owner = std::move(owner)] { run(); });
}

bool ProgressDriver::stop() {
  if (stopping_.exchange(true)) return false;
  wake_thread();
  mesh_.wake();
  if (!thread_.joinable()) return true;
  if (thread_.get_id() == std::this_thread::get_id()) {
    thread_.detach();  // a callback holds the last reference; the thread ends after it
  } else {
    thread_.join();
  }
  return true;
}

// --- driving ---

bool ProgressDriver::drive_until(OpState& op, Deadline deadline) {
  while (!op.done()) {
    std::unique_lock lock(progress_, std::try_to_lock);
    if (lock.owns_lock()) {
      drive(lock, &op, deadline);
      if (lock.owns_lock()) lock.unlock();
      if (queue_.has_pending() || frames_wait_.load(std::memory_order_relaxed)) leave_to_thread();
      if (!op.done() && deadline.expired()) return false;
      continue;
    }
    // Another thread drives. Look for a moment, since sleeping and waking cost more than a short
    // operation; once for each operation, however often its end is waited for.
    const int64_t give_up = op.waited_since_ns(now_ns()) + poll_ns_;
    while (!op.done() && now_ns() < give_up) {
      if (yields_) sched_yield();
      relax();
    }
    // The driver may leave for its own reasons: then the progress thread is woken, and takes over.
    if (!op.wait_done(deadline) && deadline.expired()) return op.done();
  }
  return true;
}

// Drives until `until` is done (null: until nothing is left to do), or the deadline.
void ProgressDriver::drive(std::unique_lock<std::mutex>& lock, OpState* until, Deadline deadline) {
  for (;;) {
    const bool moved = step();
    if (queue_.has_ended()) {
      frames_wait_.store(mesh_.wants_to_write(), std::memory_order_relaxed);
      report_ended(lock);
      if (until != nullptr && until->done()) return;
      // Another thread that has taken over meanwhile may drive for as long as anything is pending.
      if (!lock.try_lock()) return;
    }
    if (until == nullptr ? !has_work_left() : until->done()) return;
    if (moved) {
      idle_since_ns_ = 0;
      continue;
    }
    if (idle_since_ns_ == 0) idle_since_ns_ = now_ns();
    if (!rest(until, deadline)) return;
  }
}

// An operation has ended once its small messages are copied. Their frames may still wait for room
// in a kernel, and a peer for them.
bool ProgressDriver::has_work_left() const {
  return queue_.has_pending() || (mesh_.wants_to_write() && !stopping_.load());
}

// An exception fails the operations, not the process. The result is then true: something has moved.
template <typename Call>
bool ProgressDriver::guarded(Call call) {
  try {
    return call();
  } catch (const std::exception& error) {
    insist([&] { steps_.on_exception(error); });
    return true;
  }
}

bool ProgressDriver::step() {
  const bool look = num_steps_++ % kStepsPerLook == 0;
  if (look && now_ns() >= next_tick_ns_) tick();
  if (has_calls_.load(std::memory_order_acquire)) take_calls();
  return guarded([&] { return steps_.step(look); });
}

void ProgressDriver::tick() {
  next_tick_ns_ = now_ns() + mesh_.tick_ms() * kNsPerMs;
  guarded([this] {
    steps_.tick();
    return true;
  });
}

// Between two looks of a driver that has seen nothing for `waited_ns`.
void ProgressDriver::relax_after(int64_t waited_ns) const {
  if (yields_ && waited_ns >= yield_after_ns_) {
    sched_yield();
  } else {
    relax();
  }
}

// Nothing moved: poll on for a moment, then sleep. The moment begins when something has moved, not
// with a wait: who waits a millisecond again and again would poll for ever, and pollers that yield
// can keep their peers from the cores for seconds. One look at the clock costs as much as half of
// the step that it follows.
bool ProgressDriver::rest(const OpState* until, Deadline deadline) {
  const int64_t now = now_ns();
  if (deadline.expired_at(now)) return false;
  if (steps_.is_connecting()) {
    std::this_thread::sleep_for(connecting_pause_);
  } else if (now - idle_since_ns_ < poll_ns_) {
    relax_after(now - idle_since_ns_);
    return true;
  }
  if (now >= next_tick_ns_) tick();
  const int timeout_ms = mesh_.tick_ms();
  const int until_deadline_ms = deadline.remaining_poll_ms();
  num_steps_ = 0;  // look at the sockets after waking
  const auto advance = [this] { return guarded([this] { return steps_.advance_all(); }); };
  mesh_.sleep(until_deadline_ms < 0 ? timeout_ms : std::min(timeout_ms, until_deadline_ms),
              [this, until, &advance] {
                return (until != nullptr && until->done()) || stopping_.load() || has_calls() ||
                       queue_.has_submitted() || advance() || queue_.has_ended();
              });
  return !deadline.expired();
}

void ProgressDriver::report_ended(std::unique_lock<std::mutex>& lock) {
  queue_.report_ended(lock);
  // A thread that drives meanwhile, and waits for one of these, may have gone to sleep.
  mesh_.wake();
}

// --- calls from other threads ---

// The driver may sleep with the progress lock for as long as nothing comes: it is woken and calls;
// if nobody drives, or the driver leaves before, the lock is free.
void ProgressDriver::call(const std::function<void()>& task) {
  std::unique_lock calls(calls_mutex_);
  calls_.push_back(&task);
  const uint64_t number = ++num_calls_;
  has_calls_.store(true, std::memory_order_release);
  while (num_called_ < number) {
    calls.unlock();
    mesh_.wake();
    std::unique_lock lock(progress_, std::try_to_lock);
    if (lock.owns_lock()) {
      take_calls();
      report_ended(lock);
      // Others that found the lock taken count on its holder to go on.
      if (queue_.has_pending()) wake_thread();
    }
    calls.lock();
    if (num_called_ < number) called_.wait_for(calls, kCallRetry);
  }
}

// With the lock, not by the flag alone: a thread that sleeps after this has missed nothing.
bool ProgressDriver::has_calls() const {
  std::lock_guard lock(calls_mutex_);
  return !calls_.empty();
}

void ProgressDriver::take_calls() {
  std::unique_lock lock(calls_mutex_);
  const std::vector<const std::function<void()>*> calls = std::exchange(calls_, {});
  has_calls_.store(false, std::memory_order_relaxed);
  lock.unlock();
  for (const std::function<void()>* task : calls) {
    guarded([task] {
      (*task)();
      return true;
    });
  }
  lock.lock();
  num_called_ += calls.size();
  called_.notify_all();
}

// --- the progress thread ---

void ProgressDriver::run() {
  const auto tick_time = std::chrono::milliseconds(mesh_.tick_ms());
  while (!stopping_.load()) {
    {
      std::unique_lock idle(idle_mutex_);
      const auto must_look = [this] { return has_work_ || stopping_.load(); };
      idle_changed_.wait_for(idle, tick_time, [&] { return must_look() || has_leftovers_; });
      // A caller that waits for one operation after another comes back in a moment.
      if (!must_look() && has_leftovers_) idle_changed_.wait_for(idle, kHandOverTime, must_look);
      has_work_ = has_leftovers_ = false;
    }
    // A caller that drives also ticks, and wakes this thread if it leaves operations behind.
    {
      std::unique_lock lock(progress_, std::try_to_lock);
      if (!lock.owns_lock()) continue;
      num_steps_ = 0;
      drive(lock, nullptr, Deadline());
    }
    // Operations that came after the last look found the lock taken, and wait for this thread.
    if (queue_.has_pending()) wake_thread();
  }
}

void ProgressDriver::leave_to_thread() {
  {
    std::lock_guard lock(idle_mutex_);
    if (std::exchange(has_leftovers_, true)) return;
  }
  idle_changed_.notify_one();
}

void ProgressDriver::wake_thread() {
  {
    std::lock_guard lock(idle_mutex_);
    has_work_ = true;
  }
  idle_changed_.notify_one();
}

}  // namespace dmlcomm::engine
