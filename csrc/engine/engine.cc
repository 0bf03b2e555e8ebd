#include "engine/engine.h"

#include <sched.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "base/str_cat.h"
#include "engine/job_topology.h"
#include "engine/schedule_runner.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace dmlcomm::engine {
namespace {

using transport::RecvRequest;
using transport::SendRequest;

// Sockets and the clock are looked at once in so many steps: both cost more than a look at shared
// memory, and neither is urgent there.
constexpr uint32_t kStepsPerLook = 64;
// Where ranks leave no core free a poller yields, which costs the others little, and what it waits
// for takes longer: it goes on for so many times DMLCOMM_SPIN_US before it sleeps. With 4 ranks on
// 2 cores a 64 KiB all-reduce took 236 us with 1, where sleeping and waking dominate; and of 2
// ranks one that slept was often woken on the core of the other, where it stayed.
constexpr int64_t kYieldFactor = 20;
// Where there are as many ranks as cores, each has one most of the time, and yielding only makes it
// see later what it waits for: it begins after this time. (2 ranks, 64 KiB: 19.2 us, not 21.5.)
constexpr int64_t kYieldAfterNs = 5 * kNsPerUs;

void relax() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// How soon rails() looks again whether the driver has left without an answer.
constexpr std::chrono::milliseconds kCountersRetry{5};
// What a caller leaves behind the progress thread takes over after so long. At once, the two would
// take turns for every operation of a caller that waits for many: 40 MB in pieces over TCP took 22
// ms, not 19.
constexpr std::chrono::microseconds kHandOverTime{100};

// None where ranks are on several hosts, or leave cores free.
std::unique_ptr<Placement> make_placement(const transport::Mesh& mesh, Board& board, bool crowded) {
  const bool shared = mesh.all_share_memory();
  const int per_home = shared ? 0 : transport::ranks_per_core_of_host(mesh.job().hosts);
  if (shared ? !crowded : per_home == 0) return nullptr;
  return std::make_unique<Placement>(board, per_home);
}

}  // namespace

Engine::Engine(const EngineOptions& options)
    : options_(options),
      fork_generation_(fork_generation()),
      huge_pages_(options.config.huge_pages) {}

Result<std::shared_ptr<Engine>> Engine::create(const EngineOptions& options,
                                               const std::vector<transport::RailAddress>& rails,
                                               transport::Rendezvous& rendezvous,
                                               std::chrono::milliseconds timeout) {
  std::shared_ptr<Engine> engine(new Engine(options));
  transport::MeshOptions mesh_options;
  mesh_options.rank = options.rank;
  mesh_options.num_ranks = options.num_ranks;
  DMLCOMM_RETURN_IF_ERROR(check_grid(options, rails.size()));
  mesh_options.first_rail = first_rails(options);
  mesh_options.rails = rails;
  mesh_options.timeout = timeout;
  mesh_options.config = options.config;
  mesh_options.shared_area_bytes = Board::area_bytes(options.config.shm_board_bytes);
  mesh_options.events = engine.get();
  Result<std::unique_ptr<transport::Mesh>> mesh = transport::Mesh::create(mesh_options, rendezvous);
  if (!mesh.ok()) return mesh.status();
  engine->mesh_ = std::move(*mesh);
  engine->choose_polling();
  const topology::Topology topology = make_topology(*engine->mesh_, options, rails.size());
  engine->planner_ =
      std::make_unique<schedule::Planner>(topology, options.config.algorithm, options.plan);
  DMLCOMM_RETURN_IF_ERROR(engine->planner_->status());
  engine->board_ = std::make_unique<Board>(*engine->mesh_);
  engine->placement_ = make_placement(*engine->mesh_, *engine->board_, engine->crowded_);
  // The thread keeps the engine alive until it has ended, even where it is the last to hold it.
  engine->thread_ = std::thread([engine] { engine->run(); });
  return engine;
}

void Engine::choose_polling() {
  const transport::Job& job = mesh_->job();
  const int cores = job.own_host().num_cores;
  const int ranks = job.num_ranks_on_host();
  const int64_t spin_ns = options_.config.spin_us * kNsPerUs;
  crowded_ = ranks >= cores;
  poll_ns_ = crowded_ ? kYieldFactor * spin_ns : spin_ns;
  yield_after_ns_ = ranks > cores ? 0 : kYieldAfterNs;
  // Hosts that share the cores of one kernel, as in a lab: who polls takes the time of those it
  // waits for. 9 hosts on 2 cores took 35 ms for 64 KiB when they polled and yielded, 8 ms asleep.
  if (ranks <= cores && job.num_ranks_on_machine() > cores) poll_ns_ = 0;
}

// A forked child must not touch the rings, which it shares with its parent: the mesh is left to the
// end of the process.
Engine::~Engine() {
  if (is_copy()) (void)mesh_.release();
}

// --- taking operations in ---

OperationPtr Engine::submit(OpRequest request, Deadline deadline, bool inline_wait) {
  if (is_copy()) {
    return finished(std::move(request),
                    Status(StatusCode::unsupported,
                           str_cat("group '", options_.name,
                                   "' belongs to the parent of this forked process; a child that "
                                   "communicates needs a group of its own")));
  }
  const bool is_collective = !request.is_point_to_point();
  std::shared_ptr<OpState> op;
  Status error;
  {
    std::lock_guard lock(submit_mutex_);
    const uint64_t sequence =
        is_collective ? num_collectives_.fetch_add(1, std::memory_order_relaxed) + 1 : 0;
    op = std::make_shared<OpState>(this, std::move(request), sequence, deadline);
    error = error_;
    if (error.ok()) {
      submitted_.push_back(op);
      num_pending_.fetch_add(1, std::memory_order_relaxed);
      has_submitted_.store(true, std::memory_order_release);
    }
  }
  if (!error.ok()) {
    op->complete(Status(error.code(), str_cat(op->text(), " cannot run: ", error.message())));
    return op;
  }
  mesh_->wake();
  if (!inline_wait) wake_thread();
  return op;
}

OperationPtr Engine::finished(OpRequest request, const Status& status) {
  const bool is_collective = !request.is_point_to_point();
  const uint64_t sequence = is_collective ? ++num_collectives_ : 0;
  auto op = std::make_shared<OpState>(this, std::move(request), sequence, Deadline());
  op->complete(status);
  return op;
}

void Engine::take_submitted() {
  if (!has_submitted_.load(std::memory_order_acquire)) return;
  std::vector<std::shared_ptr<OpState>> taken;
  Status abort_reason;
  {
    std::lock_guard lock(submit_mutex_);
    taken.swap(submitted_);
    abort_reason = std::exchange(abort_reason_, Status());
    has_submitted_.store(false, std::memory_order_relaxed);
    if (counters_told_ != counters_asked_) tell_counters();
  }
  for (std::shared_ptr<OpState>& op : taken) {
    const bool is_message = op->request().is_point_to_point();
    std::list<Running>& list = is_message ? messages_ : collectives_;
    Running& running = list.emplace_back(Running{std::move(op), nullptr});
    if (!failure_.ok()) {
      end(running, failure_);
    } else if (is_message) {
      start(running);
    }
  }
  mesh_->flush_deferred();
  if (!abort_reason.ok()) fail(abort_reason);
}

// --- driving ---

bool Engine::drive_until(OpState& op, Deadline deadline) {
  while (!op.done()) {
    std::unique_lock lock(progress_, std::try_to_lock);
    if (lock.owns_lock()) {
      drive(lock, &op, deadline);
      if (lock.owns_lock()) lock.unlock();
      if (num_pending_.load(std::memory_order_acquire) > 0) leave_to_thread();
      if (!op.done() && deadline.expired()) return false;
      continue;
    }
    // Somebody drives. Look for a moment, since sleeping and waking cost more than a short
    // operation.
    const int64_t give_up = now_ns() + poll_ns_;
    while (!op.done() && now_ns() < give_up) {
      if (crowded_) sched_yield();
      relax();
    }
    // The driver may leave for its own reasons: then the progress thread is woken, and takes over.
    if (!op.wait_done(deadline) && deadline.expired()) return op.done();
  }
  return true;
}

// Drives until `until` is done (null: until nothing is pending), or the deadline.
void Engine::drive(std::unique_lock<std::mutex>& lock, OpState* until, Deadline deadline) {
  int64_t idle_since_ns = 0;
  for (;;) {
    const bool moved = step();
    if (!ended_.empty()) {
      report_ended(lock);
      if (until == nullptr ? num_pending_.load() == 0 : until->done()) return;
      // Whoever has taken over meanwhile may drive for as long as anything is pending.
      if (!lock.try_lock()) return;
    }
    if (until == nullptr && num_pending_.load(std::memory_order_acquire) == 0) return;
    if (until != nullptr && until->done()) return;
    if (moved) {
      idle_since_ns = 0;
      continue;
    }
    if (idle_since_ns == 0) idle_since_ns = now_ns();
    rest(idle_since_ns, until, deadline);
    if (deadline.expired()) return;
  }
}

bool Engine::step() {
  const bool look = num_steps_++ % kStepsPerLook == 0;
  if (look && now_ns() >= next_tick_ns_) tick();
  bool moved = has_submitted_.load(std::memory_order_relaxed);
  take_submitted();
  moved |= mesh_->poll(look || mesh_->has_socket_links());
  moved |= advance_all();
  return moved;
}

bool Engine::advance_all() {
  bool moved = false;
  if (!collectives_.empty() && greeted(&moved)) {
    Running& first = collectives_.front();
    if (first.runner == nullptr && first.op != nullptr) {
      start(first);
      moved = true;
    }
    moved |= advance(first);
    while (!collectives_.empty() && collectives_.front().op == nullptr) collectives_.pop_front();
  }
  for (auto it = messages_.begin(); it != messages_.end();) {
    moved |= advance(*it);
    it = it->op == nullptr ? messages_.erase(it) : std::next(it);
  }
  mesh_->flush_deferred();
  return moved;
}

// Before the first collective of ranks that share one host.
bool Engine::greeted(bool* moved) {
  if (!mesh_->all_share_memory() || !failure_.ok()) return true;
  if (!board_->ready()) board_->greet(moved);
  return board_->ready();
}

bool Engine::waits_for(int peer) const {
  if (!collectives_.empty() && mesh_->all_share_memory() && board_->greeting_waits_for(peer)) {
    return true;
  }
  const auto waits = [peer](const Running& r) { return r.runner && r.runner->waits_for(peer); };
  return std::any_of(collectives_.begin(), collectives_.end(), waits) ||
         std::any_of(messages_.begin(), messages_.end(), waits);
}

template <typename Call>
Status Engine::in_runner(Call call) {
  in_runner_ = true;
  Status status = call();
  in_runner_ = false;
  return status;
}

void Engine::start(Running& running) {
  OpState& op = *running.op;
  if (placement_ && (board_->ready() || !mesh_->all_share_memory())) placement_->settle();
  Status status;
  running.runner = make_runner(op, &status);
  // The runner has moved to the arena what it could.
  if (shares_memory()) huge_pages_.consider(op.request());
  if (status.ok() && !op.request().is_point_to_point()) {
    status = disagreement_error(history_.begin(op.sequence(), running.runner->info()));
  }
  if (status.ok()) {
    status = in_runner([&] { return running.runner->start(); });
  }
  if (!status.ok()) return fail(status);
  // A peer that has left in good order will not answer.
  for (int peer = 0; peer < options_.num_ranks; ++peer) {
    transport::Link* link = peer == options_.rank ? nullptr : mesh_->existing_link(peer);
    if (link == nullptr || link->state() != transport::Link::State::left) continue;
    if (running.runner->waits_for(peer)) return on_goodbye(peer);
  }
}

std::unique_ptr<Runner> Engine::make_runner(OpState& op, Status* status) {
  if (op.request().is_point_to_point()) {
    transport::LinkEvents& events = *this;
    return std::make_unique<PointToPointRunner>(*mesh_, events, loopback_, op, ++num_receives_);
  }
  if (board_->ready() && !planner_->is_overridden(op.request().shape.kind)) {
    if (auto runner = board_->runner_for(op, pool_)) return runner;
  }
  auto schedule = planner_->plan(op.request().shape);
  if (!schedule.ok()) {
    *status = schedule.status();
    return nullptr;
  }
  std::shared_ptr<const CompiledPlan>& plan = plans_[schedule->get()];
  if (plan == nullptr) {
    plan = std::make_shared<CompiledPlan>(*schedule);
    // Those whose schedules the planner has dropped.
    std::erase_if(plans_, [](const auto& item) { return item.second->schedule.use_count() == 1; });
  }
  return std::make_unique<ScheduleRunner>(*mesh_, pool_, op, plan);
}

bool Engine::advance(Running& running) {
  if (running.op == nullptr || running.runner == nullptr) return false;
  bool moved = false;
  const Status status = in_runner([&] { return running.runner->advance(&moved); });
  if (!status.ok()) {
    fail(status);
  } else if (running.op != nullptr && running.runner->complete()) {
    end(running, Status());
  }
  return moved;
}

// Notes the end; `running` stays in its list, without an operation, until the list is walked.
void Engine::end(Running& running, const Status& status) {
  if (running.op == nullptr) return;
  ended_.push_back({std::move(running.op), status});
  running.op = nullptr;
  if (status.ok()) running.runner.reset();
}

void Engine::report_ended(std::unique_lock<std::mutex>& lock) {
  std::vector<Ended> ended;
  ended.swap(ended_);
  num_pending_.fetch_sub(static_cast<uint32_t>(ended.size()), std::memory_order_release);
  lock.unlock();
  for (Ended& item : ended) item.op->complete(item.status);
  // Whoever drives meanwhile, and waits for one of these, may have gone to sleep.
  mesh_->wake();
}

void Engine::tick() {
  next_tick_ns_ = now_ns() + mesh_->tick_ms() * kNsPerMs;
  mesh_->tick([this](int peer) { return waits_for(peer); });
  check_deadlines();
}

// Between two looks of a driver that has seen nothing for `waited_ns`.
void Engine::relax_after(int64_t waited_ns) const {
  if (crowded_ && waited_ns >= yield_after_ns_) {
    sched_yield();
  } else {
    relax();
  }
}

// Nothing moved: poll on for a moment, then sleep.
void Engine::rest(int64_t idle_since_ns, const OpState* until, Deadline deadline) {
  const int64_t now = now_ns();
  if (now - idle_since_ns < poll_ns_) {
    relax_after(now - idle_since_ns);
    return;
  }
  if (now >= next_tick_ns_) tick();
  const int timeout_ms = mesh_->tick_ms();
  const int until_deadline_ms = deadline.remaining_poll_ms();
  num_steps_ = 0;  // look at the sockets after waking
  mesh_->sleep(until_deadline_ms < 0 ? timeout_ms : std::min(timeout_ms, until_deadline_ms),
               [this, until] {
                 const bool is_done = until != nullptr && until->done();
                 return is_done || has_news() || advance_all() || !ended_.empty();
               });
}

bool Engine::has_news() const {
  std::lock_guard lock(submit_mutex_);
  return !submitted_.empty() || !abort_reason_.ok() || counters_told_ != counters_asked_ ||
         stopping_.load();
}

// --- the progress thread ---

void Engine::run() {
  const auto tick_time = std::chrono::milliseconds(mesh_->tick_ms());
  while (!stopping_.load()) {
    {
      std::unique_lock idle(idle_mutex_);
      const auto must_look = [this] { return has_work_ || stopping_.load(); };
      idle_changed_.wait_for(idle, tick_time, [&] { return must_look() || has_leftovers_; });
      // Whoever left something comes back in a moment, if he waits for one operation after another.
      if (!must_look() && has_leftovers_) idle_changed_.wait_for(idle, kHandOverTime, must_look);
      has_work_ = has_leftovers_ = false;
    }
    // Where a caller drives, it also ticks, and wakes this thread if it leaves something behind.
    {
      std::unique_lock lock(progress_, std::try_to_lock);
      if (!lock.owns_lock()) continue;
      num_steps_ = 0;
      drive(lock, nullptr, Deadline());
    }
    // What came after the last look found the lock taken, and waits for this thread.
    if (num_pending_.load(std::memory_order_acquire) > 0) wake_thread();
  }
}

void Engine::leave_to_thread() {
  {
    std::lock_guard lock(idle_mutex_);
    if (std::exchange(has_leftovers_, true)) return;
  }
  idle_changed_.notify_one();
}

void Engine::wake_thread() {
  {
    std::lock_guard lock(idle_mutex_);
    has_work_ = true;
  }
  idle_changed_.notify_one();
}

void Engine::close() {
  if (stopping_.exchange(true)) return;
  if (is_copy()) return thread_.detach();
  if (num_pending_.load() > 0) abort("the group was closed while operations were pending");
  {
    std::lock_guard lock(submit_mutex_);
    if (error_.ok()) {
      error_ = Status(StatusCode::aborted, str_cat("group '", options_.name, "' was closed"));
    }
  }
  wake_thread();
  mesh_->wake();
  if (thread_.joinable()) {
    if (thread_.get_id() == std::this_thread::get_id()) {
      thread_.detach();  // a callback holds the last reference; the thread ends after it
    } else {
      thread_.join();
    }
  }
  std::unique_lock lock(progress_);
  collectives_.clear();
  messages_.clear();
  mesh_->close();
}

Status Engine::error() const {
  std::lock_guard lock(submit_mutex_);
  return error_;
}

std::string Engine::description() const {
  return str_cat("group '", options_.name, "' rank ", options_.rank, " of ", options_.num_ranks,
                 ": ", mesh_->description());
}

// Whoever drives may sleep with the progress lock for as long as nothing comes: it is woken and
// answers; if nobody drives, or the driver leaves before, the lock is free.
std::vector<transport::RailCounters> Engine::rails() {
  std::unique_lock submit(submit_mutex_);
  const uint64_t ticket = ++counters_asked_;
  has_submitted_.store(true, std::memory_order_release);
  while (counters_told_ < ticket) {
    submit.unlock();
    mesh_->wake();
    const bool is_driver = progress_.try_lock();
    submit.lock();
    if (is_driver) {
      tell_counters();
      progress_.unlock();
    } else {
      counters_changed_.wait_for(submit, kCountersRetry);
    }
  }
  return counters_;
}

// With the progress lock and submit_mutex_.
void Engine::tell_counters() {
  counters_ = mesh_->counters();
  counters_told_ = counters_asked_;
  counters_changed_.notify_all();
}

// --- what the links say ---

void Engine::on_sent(SendRequest& request) {
  static_cast<Runner*>(request.owner)->on_sent(request);
}

void Engine::on_arrived(RecvRequest& request) {
  static_cast<Runner*>(request.owner)->on_arrived(request);
}

void Engine::provide_window(RecvRequest& request) {
  static_cast<Runner*>(request.owner)->provide_window(request);
}

RecvRequest* Engine::claim_any_source(transport::Tag tag, uint64_t before_order) {
  for (Running& running : messages_) {
    if (running.op == nullptr || running.op->request().peer != kAnySource) continue;
    RecvRequest* request = static_cast<PointToPointRunner&>(*running.runner).unclaimed();
    if (request == nullptr || request->source >= 0 || request->tag != tag) continue;
    return request->posted_order < before_order ? request : nullptr;
  }
  return nullptr;
}

}  // namespace dmlcomm::engine
