#include "engine/engine.h"

#include <algorithm>
#include <utility>

#include "base/str_cat.h"
#include "engine/job_topology.h"
#include "engine/schedule_runner.h"
#include "schedule/joining_barrier.h"

namespace dmlcomm::engine {
namespace {

using transport::RecvRequest;
using transport::SendRequest;

// None where ranks are on several hosts, or leave cores free.
std::unique_ptr<Placement> make_placement(const transport::Mesh& mesh, Board& board, bool crowded) {
  const bool shared = mesh.all_share_memory();
  const int per_home = shared ? 0 : transport::ranks_per_core_of_host(mesh.job().hosts);
  if (shared ? !crowded : per_home == 0) return nullptr;
  return std::make_unique<Placement>(board, per_home);
}

Tuner::Network network_of(transport::Mesh& mesh) {
  const auto measure_rails = [&mesh](auto... period) { mesh.measure_rails(period...); };
  const transport::Job& job = mesh.job();
  return {job.num_ranks_on_host(), mesh.all_share_memory(), job.all_tune(),
          job.all_probe(),         mesh.meters(),           measure_rails};
}

MetricsPlace metrics_place_of(const transport::Job& job) {
  int before = 0;
  for (int rank = 0; rank < job.rank; ++rank) before += job.same_host(rank) ? 1 : 0;
  const Config& config = job.config;
  return {config.metrics_host, config.metrics_port, config.local_rank.value_or(before)};
}

}  // namespace

Engine::Engine(CommunicatorOptions options)
    : options_(std::move(options)),
      fork_generation_(fork_generation()),
      huge_pages_(options_.config->huge_pages),
      queue_(options_.first_sequence) {}

Result<std::shared_ptr<Engine>> Engine::create(CommunicatorOptions given,
                                               transport::Rendezvous& rendezvous) {
  std::shared_ptr<Engine> engine(new Engine(std::move(given)));
  const CommunicatorOptions& options = engine->options_;
  const Config& config = *options.config;
  DMLCOMM_RETURN_IF_ERROR(check_grid(options));
  transport::MeshOptions mesh_options;
  mesh_options.rank = options.rank;
  mesh_options.num_ranks = options.num_ranks;
  mesh_options.first_rail = first_rails(options);
  mesh_options.reads_alone = options.reads_alone;
  mesh_options.queues_little = options.queues_little;
  mesh_options.rails = options.rails;
  mesh_options.rail_rates_bps = options.rail_rates_bps;
  mesh_options.relaying = options.relaying;
  mesh_options.global_ranks = options.global_ranks;
  mesh_options.grid = options.grid;
  mesh_options.host_of_rank = options.host_of_rank;
  mesh_options.tunes = options.tunes();
  mesh_options.timeout = options.timeout;
  mesh_options.config = config;
  mesh_options.shared_area_bytes = Board::area_bytes(config.shm_board_bytes);
  mesh_options.events = engine.get();
  mesh_options.seat = options.seat;
  Result<std::unique_ptr<transport::Mesh>> mesh = transport::Mesh::create(mesh_options, rendezvous);
  if (!mesh.ok()) return mesh.status();
  engine->mesh_ = std::move(*mesh);
  Steppable& steps = *engine;
  engine->driver_ = std::make_unique<ProgressDriver>(*engine->mesh_, engine->queue_, steps, config,
                                                     options.shares_cores);
  engine->planner_ = std::make_unique<schedule::Planner>(make_topology(*engine->mesh_, options),
                                                         config.algorithm, options.plan);
  DMLCOMM_RETURN_IF_ERROR(engine->planner_->status());
  engine->tuner_ = std::make_unique<Tuner>(options, network_of(*engine->mesh_), *engine->planner_);
  engine->rail_sharing_ = std::make_unique<RailSharing>(
      engine->queue_, [mesh = engine->mesh_.get()](double share) { mesh->share_rails(share); });
  engine->board_ = std::make_unique<Board>(*engine->mesh_);
  engine->agenda_.emplace(*engine->board_);
  engine->placement_ =
      make_placement(*engine->mesh_, *engine->board_, engine->driver_->is_crowded());
  DMLCOMM_RETURN_IF_ERROR(engine->driver_->start(engine));
  // Pairs of a worker and a server are no ranks of a job: servers tell of them.
  if (options.names.empty()) {
    Inspector::instance().add_group(engine, engine->number(),
                                    metrics_place_of(engine->mesh_->job()));
  }
  return engine;
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
                    Status(StatusCode::unsupported, "group '", options_.name,
                           "' belongs to the parent of this forked process; a child that "
                           "communicates needs a group of its own"));
  }
  OperationPtr op = queue_.submit(driver_.get(), std::move(request), deadline);
  mesh_->wake();
  if (!inline_wait) driver_->wake_thread();
  return op;
}

OperationPtr Engine::finished(OpRequest request, const Status& status) {
  return queue_.finished(driver_.get(), std::move(request), status);
}

Result<double> Engine::estimate(const OpRequest& request) {
  Result<double> seconds = 0.0;
  if (is_copy() || options_.num_ranks == 1) return seconds;
  driver_->call([&] {
    if (request.is_point_to_point()) {
      seconds = message_seconds(request);
    } else if (const Status status = planner_->check(request.shape); !status.ok()) {
      seconds = status;
    } else {
      seconds = planner_->seconds(request.shape);
    }
  });
  return seconds;
}

// From any source: from another host, if there are several.
double Engine::message_seconds(const OpRequest& request) const {
  const topology::Topology& topology = planner_->topology();
  const auto own = static_cast<uint32_t>(options_.rank);
  const bool is_near = request.peer == kAnySource
                           ? topology.is_one_host()
                           : topology.same_host(own, static_cast<uint32_t>(request.peer));
  const topology::Link& link = is_near ? topology.intra_host : topology.inter_host;
  const double beta = is_near ? link.beta_s_per_byte : topology.striped_beta();
  const size_t bytes = std::max(request.input.bytes(), request.output.bytes());
  return link.alpha_s + link.overhead_s + beta * static_cast<double>(bytes);
}

// --- driving ---

bool Engine::step(bool look) {
  bool moved = queue_.take_submitted();
  if (queue_.has_tickets()) mesh_->limit_credit();
  board_->set_uses_tickets(queue_.has_tickets());
  moved |= mesh_->poll(look || mesh_->has_socket_links());
  moved |= advance_all();
  return moved;
}

bool Engine::advance_all() {
  bool moved = false;
  if (queue_.has_unplanned()) plan_collectives(&moved);
  while (Running* running = next_to_start()) {
    start(*running);
    moved = true;
  }
  queue_.for_each_planned([&](Running& running) {
    const bool is_passed = beside_ != nullptr && beside_ != &running && running.plan == nullptr;
    if (!is_passed) moved |= advance(running);
  });
  if (!messages_.ready.empty()) moved |= advance_messages();
  queue_.sweep();
  rail_sharing_->update();
  mesh_->flush_deferred();
  return moved;
}

bool Engine::is_connecting() const {
  return mesh_->all_share_memory() && queue_.has_unplanned() && !board_->ready();
}

void Engine::plan_collectives(bool* moved) {
  if (!exchanged_capabilities(moved)) return;
  while (Running* next = queue_.next_to_plan()) {
    const uint64_t window =
        agenda_->is_used() ? AgendaWords::kPlaces : tuner_->window(next->op->request().shape);
    if (queue_.distance(*next) >= window) return;
    const Status status = plan(*next);
    if (!status.ok()) return fail(status);
    queue_.planned(*next);
  }
}

OperationQueue::Running* Engine::next_to_start() {
  if (!agenda_->is_used()) return queue_.may_start_any() ? queue_.next_to_start() : nullptr;
  agenda_->show(queue_);
  if (Running* message = queue_.next_message()) return message;
  if (!queue_.has_collectives() || beside_ != nullptr) return nullptr;
  Running* next = nullptr;
  if (!queue_.runs_collective()) next = unless_refused(agenda_->next(queue_));
  if (next == nullptr) beside_ = next = unless_refused(agenda_->next_beside(queue_));
  if (next == nullptr && !queue_.runs_collective()) notice_left_peers();
  return next;
}

OperationQueue::Running* Engine::unless_refused(const Result<Running*>& next) {
  if (next.ok()) return *next;
  fail(next.status());
  return nullptr;
}

// Peers that have left in good order before they called what this rank waits for.
void Engine::notice_left_peers() {
  for (int peer = 0; peer < options_.num_ranks; ++peer) {
    transport::Link* link = peer == options_.rank ? nullptr : mesh_->existing_link(peer);
    if (link != nullptr && link->state() == transport::Link::State::left) on_goodbye(peer);
  }
}

// All ranks come to the same algorithm.
Status Engine::plan(Running& running) {
  const OpState& op = *running.op;
  const schedule::OpShape& shape = op.request().shape;
  DMLCOMM_RETURN_IF_ERROR(planner_->check(shape));
  const schedule::Carried carried = tuner_->plan(op);
  running.algorithm = &planner_->choose(shape);
  if (running.algorithm->is_schedule()) {
    const auto schedule = planner_->schedule_of(shape, *running.algorithm, carried);
    std::shared_ptr<const CompiledPlan>& plan = plans_[schedule.get()];
    if (plan == nullptr) {
      auto compiled = std::make_shared<CompiledPlan>(schedule);
      compiled->latency = planner_->latency(*running.algorithm, shape);
      const double alpha_s = planner_->topology().inter_host.alpha_s;
      compiled->latency_s = compiled->latency.seconds(alpha_s);
      if (carried.barrier) {
        const auto& barrier = schedule::joining_barrier(planner_->topology());
        const double barrier_s = planner_->latency(barrier, shape).seconds(alpha_s);
        compiled->latency_s = std::max(compiled->latency_s, barrier_s);
      }
      compiled->tells_rates = Tuner::tells_rates(shape);
      plan = std::move(compiled);
      // Those whose schedules the planner has dropped.
      std::erase_if(plans_,
                    [](const auto& item) { return item.second->schedule.use_count() == 1; });
    }
    running.plan = plan;
  }
  tuner_->planned(op);
  return Status();
}

// Before the first collective of ranks that share one host.
bool Engine::exchanged_capabilities(bool* moved) {
  if (!mesh_->all_share_memory() || !failure_.ok()) return true;
  if (!board_->ready()) {
    board_->exchange_capabilities(moved);
    if (board_->ready()) planner_->share_memory(board_->memory());
  }
  return board_->ready();
}

bool Engine::waits_for(int peer) {
  if (queue_.has_collectives() && mesh_->all_share_memory() &&
      board_->capabilities_wait_for(peer)) {
    return true;
  }
  if (agenda_->is_used() && queue_.has_collectives() && !queue_.runs_collective() &&
      agenda_->waits_for(peer, oldest_collective())) {
    return true;
  }
  return queue_.find_if([&](const Running& running) {
    return running.runner && running.runner->waits_for(peer);
  }) != nullptr;
}

void Engine::consider_huge_pages(const OpRequest& request) {
  huge_pages_.begin();
  for (const BufferView* buffer : {&request.input, &request.output}) {
    for (size_t i = 0; i < buffer->num_pieces(); ++i) huge_pages_.consider(buffer->piece(i));
  }
}

template <typename Call>
Status Engine::in_runner(Call call) {
  in_runner_ = true;
  Status status = call();
  in_runner_ = false;
  return status;
}

// A message that leaves this host.
bool Engine::uses_rails(const OpState& op) const {
  const OpRequest& request = op.request();
  return request.shape.kind == schedule::OpKind::send && !mesh_->job().same_host(request.peer);
}

void Engine::start(Running& running) {
  OpState& op = *running.op;
  if (placement_ && (board_->ready() || !mesh_->all_share_memory())) placement_->settle();
  if (!op.request().is_point_to_point()) {
    tuner_->started(op);
  } else if (uses_rails(op)) {
    tuner_->message_started();
  }
  running.runner = make_runner(running);
  // The runner has moved to the arena what it could.
  if (shares_memory()) consider_huge_pages(op.request());
  Status status;
  if (!op.request().is_point_to_point()) {
    status = disagreement_error(
        history_.begin(op.sequence(), running.runner->info(), oldest_collective()));
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

std::unique_ptr<Runner> Engine::make_runner(Running& running) {
  OpState& op = *running.op;
  if (op.request().is_point_to_point()) {
    transport::LinkEvents& events = *this;
    return std::make_unique<PointToPointRunner>(*mesh_, events, messages_, running);
  }
  if (running.plan == nullptr) {
    Board& board = &running == beside_ ? *second_board_ : *board_;
    return board.runner_for(op, *running.algorithm, pool_);
  }
  return std::make_unique<ScheduleRunner>(*mesh_, pool_, op, running.plan,
                                          tuner_->own_report(op, queue_.num_ticketed()));
}

// At the end of an operation that needed all ranks of this host.
void Engine::learn_of_tickets(const Running& running) {
  const bool joins_all =
      running.plan == nullptr || schedule::joins_all(running.op->request().shape);
  const bool is_used = running.runner->report().uses_tickets();
  if (!mesh_->all_share_memory() || agenda_->is_used() || !joins_all || !is_used) return;
  second_board_ = std::make_unique<Board>(*board_);
  agenda_->begin(running.sequence + 1);
}

bool Engine::advance(Running& running) {
  if (running.runner == nullptr) return false;
  bool moved = false;
  const Status status = in_runner([&] { return running.runner->advance(&moved); });
  if (!status.ok()) {
    fail(status);
  } else if (running.op != nullptr && running.runner->complete()) {
    if (running.sequence > 0) {
      tuner_->ended(running.sequence, *running.runner);
      learn_of_tickets(running);
    } else if (uses_rails(*running.op)) {
      tuner_->message_ended();
    }
    if (&running == beside_) beside_ = nullptr;
    queue_.end(running, Status());
  }
  return moved;
}

// Those that become ready meanwhile, and those that have more to do, have their turn next time.
bool Engine::advance_messages() {
  bool moved = false;
  for (Running* running : std::exchange(messages_.ready, {})) {
    if (running->op != nullptr) moved |= advance(*running);
  }
  return moved;
}

void Engine::tick() {
  mesh_->tick([this](int peer) { return waits_for(peer); });
  check_deadlines();
}

void Engine::close() {
  if (closed_.exchange(true)) return;
  if (is_copy()) return driver_->forget_thread();
  driver_->call([this] {
    if (queue_.has_pending()) {
      fail(aborted("the group was closed while operations were pending"));
    } else {
      queue_.set_error(Status(StatusCode::aborted, "group '", options_.name, "' was closed"));
    }
  });
  driver_->stop();
  const auto lock = driver_->lock();
  queue_.clear();
  mesh_->close();
}

std::string Engine::description() const {
  return str_cat("group '", options_.name, "' rank ", options_.rank, " of ", options_.num_ranks,
                 ": ", mesh_->description());
}

std::vector<transport::RailCounters> Engine::rails() {
  std::vector<transport::RailCounters> counters;
  if (is_copy()) return counters;
  driver_->call([&] { counters = rail_counters(); });
  return counters;
}

std::vector<transport::RailCounters> Engine::rail_counters() const {
  std::vector<transport::RailCounters> counters = mesh_->counters();
  for (size_t rail = 0; rail < counters.size(); ++rail) {
    tuner_->show_agreed(rail, &counters[rail]);
  }
  return counters;
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
  auto& unclaimed = messages_.unclaimed;
  const auto found = std::find_if(unclaimed.begin(), unclaimed.end(),
                                  [&](auto* runner) { return runner->receive().tag == tag; });
  if (found == unclaimed.end()) return nullptr;
  RecvRequest* request = &(*found)->receive();
  if (request->posted_order >= before_order) return nullptr;
  unclaimed.erase(found);
  return request;
}

}  // namespace dmlcomm::engine
